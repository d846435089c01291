from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from rich.console import Console

from dprec.data import Catalogue
from dprec.evaluate import main as evaluate
from dprec.fit import main as fit
from dprec.prepare import main as prepare
from dprec.recommend import OF_LOGS
from dprec.recommend import main as recommend
from dprec.run.saved.checkpoints import load_run
from dprec.serving.predictions import recommend_to_all
from dprec.serving.served import load
from tests.commands.support import answered, environment


@pytest.fixture
def moved(trained: Path, here: Path) -> Path:
    """A checkpoint alone, far from its data."""
    (here / "only.ckpt").write_bytes((trained / "checkpoints/last.ckpt").read_bytes())
    return here / "only.ckpt"


def test_items_are_the_models_best_unseen_ones(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = answered(capsys, recommend, str(moved), "--history", "film3, film4 film5", "-k", "4")
    checkpoint, model = load_run(str(moved))
    catalogue = Catalogue(checkpoint["dprec"]["catalogue"])
    ids = torch.tensor([[catalogue.index(raw) for raw in ("film3", "film4", "film5")]])
    with torch.no_grad():
        scores = model.encode(ids)[0, -1] @ model.item_table.T
    ranked = sorted(range(1, 13), key=lambda item: -scores[item])
    best = [item for item in ranked if item not in ids[0].tolist()][:4]
    assert given["items"] == [catalogue.raw(item) for item in best]
    assert given["scores"] == pytest.approx(scores[best].tolist(), rel=1e-4)


def test_seen_items_come_back_only_on_request(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = " ".join(f"film{n}" for n in range(10))
    assert sorted(answered(capsys, recommend, str(moved), "--history", history)["items"]) == ["film10", "film11"]
    assert len(answered(capsys, recommend, str(moved), "--history", history, "-k", "99", "--allow-seen")["items"]) == 12


def test_a_history_may_be_longer_than_the_model_sees(moved: Path) -> None:
    long = [f"film{n % 12}" for n in range(50)]
    whole, recent = load(moved).recommend([long, long[-10:]], k=3, exclude_seen=False)
    assert whole == recent


@pytest.mark.parametrize(
    ("history", "says"), [("12 13", "(12, 13), so what most people choose; ids"), ("", "is empty")]
)
def test_a_history_without_a_known_item_gets_popularity_and_is_told_so(
    moved: Path, capsys: pytest.CaptureFixture[str], history: str, says: str
) -> None:
    assert recommend([str(moved), "--history", history, "-k", "3", "--json"]) == 0
    said = capsys.readouterr()
    assert says in said.err
    assert ("ids of the run look like film" in said.err) is bool(history)
    found = json.loads(said.out)
    assert found["source"] == "popularity"
    assert found["items"] == load(moved).recommend([[]], k=3)[0].items


def test_unknown_items_are_skipped_with_a_warning(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recommend([str(moved), "--history", "film1 what film2", "--json"])
    said = capsys.readouterr()
    assert "what" in said.err
    assert "film1" not in said.err
    assert json.loads(said.out)["items"] == answered(capsys, recommend, str(moved), "--history", "film1 film2")["items"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h.txt", "film1 film2\n\nnothing known\nfilm3\n"),
        ("h.jsonl", '["film1", "film2"]\n{"history": ["nothing", "known"]}\n["film3"]\n'),
        ("h.jsonl", '["film1", "film2"]\n{"history": ["nothing", "known"], "a": "\u2028"}\n["film3"]\n'),
    ],
)
def test_a_file_of_histories(moved: Path, here: Path, capsys: pytest.CaptureFixture[str], name: str, text: str) -> None:
    (here / name).write_text(text)
    assert recommend([str(moved), "--file", name, "-k", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["history"] for line in lines] == [["film1", "film2"], ["nothing", "known"], ["film3"]]
    assert [line["source"] for line in lines] == ["history", "popularity", "history"]
    assert lines[2]["items"] == answered(capsys, recommend, str(moved), "--history", "film3", "-k", "2")["items"]
    assert len(lines[2]["scores"]) == 2


def test_a_line_says_whose_it_is_and_so_does_its_answer(
    moved: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "h.jsonl").write_text('{"user": "ann", "history": ["film1"]}\n{"user": 7, "history": []}\n["film2"]\n')
    assert recommend([str(moved), "--file", "h.jsonl"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("user") for line in lines] == ["ann", "7", None]


@pytest.mark.parametrize("name", ["all.parquet", "all.csv", "all.jsonl"])
def test_all_users_of_a_log(moved: Path, log: Path, here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Each user's rows are what the same history gets alone; who has only unknown items gets popularity."""
    text = log.read_text() + "new nothing\nnew unknown\n"
    (here / "log.txt").write_text(text)
    assert recommend([str(moved), "--users", "log.txt", "--out", name, "-k", "3"]) == 0
    said = capsys.readouterr().out
    assert "2 items of the log are unknown" in said
    assert "1 user has no known item" in said
    assert f"61 users, 3 items each: {name}" in said
    read = {".parquet": pl.read_parquet, ".csv": pl.read_csv, ".jsonl": pl.read_ndjson}[Path(name).suffix]
    frame = read(name)
    assert frame.columns == ["user", "place", "item", "score", "source"]
    histories: dict[str, list[str]] = {}
    for line in text.splitlines():
        histories.setdefault(line.split()[0], []).append(line.split()[1])
    alone = load(moved).recommend(histories, k=3)
    for user, found in alone.items():
        rows = frame.filter(pl.col("user") == user).sort("place")
        assert rows["item"].to_list() == found.items
        assert rows["score"].to_list() == pytest.approx(found.scores, rel=1e-4)
        assert set(rows["source"]) == {found.source}
    assert recommend([str(moved), "--users", "log.txt", "--out", name]) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["film1 film2\nfilm3\n", '["film1", "film2"]\n["film3"]\n'])
def test_histories_from_standard_input(
    moved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert recommend([str(moved), "--file", "-", "-k", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["history"] for line in lines] == [["film1", "film2"], ["film3"]]


@pytest.mark.full
def test_a_reader_that_stops_early_is_no_error(moved: Path, here: Path) -> None:
    (here / "many.txt").write_text("film1 film2\n" * 5000)
    command = [sys.executable, "-m", "dprec.recommend", str(moved), "--file", "many.txt", "-k", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["items"]
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_the_table_shows_raw_ids(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recommend([str(trained), "--history", "film1", "-k", "3"]) == 0
    assert capsys.readouterr().out.count("film") == 3


def test_all_users_of_a_prepared_log(moved: Path, log: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare([str(log), "--out", "home"]) == 0
    assert recommend([str(moved), "--users", "home", "--out", "prepared.csv"]) == 0
    assert recommend([str(moved), "--users", str(log), "--out", "log.csv"]) == 0
    assert (here / "prepared.csv").read_text() == (here / "log.csv").read_text()
    capsys.readouterr()
    assert recommend([str(moved), "--users", "home", "--user_column", "who", "--out", "other.csv"]) == 2
    assert "home is already prepared, so --user_column cannot change" in capsys.readouterr().err


def test_what_prepare_was_told_of_a_log_is_known_where_its_users_are_asked_for(
    recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And without a column of times each command says so, by what it calls that column, also of a prepared log."""
    rows = [(f"u{user}", f"i{(user + n) % 9}", 9 - n, n % 8) for user in range(30) for n in range(7)]
    frame = pl.DataFrame(rows, schema=["user", "item", "when", "stars"], orient="row")
    frame.write_csv("log.csv")
    told = ["--data.time_column", "when", "--data.where", "stars < 6"]
    assert prepare(["log.csv", *told, "--out", "home"]) == 0
    args = [str(recipe), "--trainer.max_steps", "2", "--privacy", "null"]
    assert fit([*args, "--data.path", "home", "--out", "run"]) == 0
    assert "no column" not in capsys.readouterr().err
    for users in ("home", "log.csv"):
        assert recommend(["run", "--users", users, "--out", f"{users}.parquet"]) == 0
    assert pl.read_parquet("home.parquet").equals(pl.read_parquet("log.csv.parquet"))
    assert "no column" not in capsys.readouterr().err

    says = "log.csv has no column that looks like the time: set {}; without it, the order of the rows counts as"
    for _ in range(2):
        assert prepare(["log.csv", "--out", "untimed"]) == 0
        assert capsys.readouterr().err.startswith(says.format("data.time_column"))
    assert fit([*args, "--data.path", "untimed", "--out", "other"]) == 0
    said = f"untimed, as it was prepared: {says.format('data.time_column')}"
    assert said in capsys.readouterr().err
    assert evaluate(["other"]) == 0
    assert said in capsys.readouterr().err
    assert recommend(["other", "--users", "log.csv", "--out", "rows.parquet"]) == 0
    assert says.format("--time_column") in capsys.readouterr().err
    assert recommend(["other", "--users", "log.csv", "--time_column", "wen", "--out", "none.parquet"]) == 2
    assert "log.csv has no column 'wen' (--time_column)" in capsys.readouterr().err


def test_a_log_of_users_is_filtered_as_that_of_training_was(
    moved: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = load(moved)
    served.facts["data"]["init_args"]["where"] = "rating >= 4"
    (here / "rated.csv").write_text("user_id,item_id,timestamp,rating\nann,film1,1,5\nann,film2,2,1\n")
    for where, history in ((None, ["film1"]), ("null", ["film1", "film2"]), ("rating < 4", ["film2"])):
        settings = {**dict.fromkeys(OF_LOGS), "where": where}
        recommend_to_all(served, "rated.csv", f"{where}.csv", settings, 3, False, Console())
        replaced = '--where replaces the condition of the run, "rating >= 4"' in capsys.readouterr().err
        assert replaced == (where is not None)
        assert pl.read_csv(f"{where}.csv")["item"].to_list() == served.recommend([history], 3, False)[0].items


def test_a_log_of_users_may_lack_the_columns_of_the_runs_condition(
    moved: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = load(moved)
    served.facts["data"]["init_args"]["where"] = "rating >= 4"
    monkeypatch.setattr("dprec.serving.served.load", lambda *_: served)
    (here / "plain.csv").write_text("user_id,item_id,timestamp\nann,film1,1\n")
    assert recommend([str(moved), "--users", "plain.csv", "--out", "a.csv"]) == 2
    assert "--where is 'rating >= 4' and plain.csv names no column 'rating'" in (told := capsys.readouterr().err)
    assert "that is the run's: --where null takes all rows" in told
    assert recommend([str(moved), "--users", "plain.csv", "--where", "null", "--out", "a.csv"]) == 0
    assert pl.read_csv("a.csv")["user"].unique().to_list() == ["ann"]


def test_users_who_have_seen_all_are_counted(moved: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    everything = "".join(f"ann film{film} {film}\n" for film in range(12))
    (here / "log.txt").write_text(everything + "bob film3 1\n")
    assert recommend([str(moved), "--users", "log.txt", "--out", "all.csv", "-k", "3"]) == 0
    said = capsys.readouterr().out
    assert "1 user has seen every item: left out, --allow-seen gives some" in said
    assert "1 users, 3 items each: all.csv" in said
    assert set(pl.read_csv("all.csv")["user"]) == {"bob"}
    history = " ".join(f"film{film}" for film in range(12))
    assert recommend([str(moved), "--history", history, "--json"]) == 0
    assert "warning: --history: every item was seen" in capsys.readouterr().err
