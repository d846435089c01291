from __future__ import annotations

import io
import json
from pathlib import Path

import polars as pl
import pytest
import torch
from rich.console import Console

from dprec.data import Catalogue
from dprec.fit import main as fit
from dprec.recommend import OF_LOGS, recommend_to_all
from dprec.recommend import main as recommend
from dprec.run.saved.checkpoints import load_run
from dprec.serving.files import split_ids
from dprec.serving.served import Served, load
from tests.commands.support import answered


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


def test_candidates_and_exclusions(moved: Path, log: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--items", "film1 film2,film3", "--exclude", "film2", "-k", "5"]
    found = answered(capsys, recommend, str(moved), "--history", "film0", *words)
    assert found["items"] == load(moved).recommend([["film0"]], items=["film1", "film3"])[0].items
    assert recommend([str(moved), "--users", str(log), "--out", "few.csv", "--allow-seen", *words]) == 0
    assert set(pl.read_csv("few.csv")["item"]) == {"film1", "film3"}
    capsys.readouterr()
    assert recommend([str(moved), "--history", "film0", "--items", "film1", "--exclude", "film1"]) == 0
    assert "has no item left by --items and --exclude that is not seen (--allow-seen)" in capsys.readouterr().err
    assert recommend([str(moved), "--users", str(log), "--out", "none.csv", "--items", "film1"]) == 0
    seen = pl.read_csv(log, separator=" ", has_header=False, new_columns=["user", "item"])
    count = seen.filter(pl.col("item") == "film1")["user"].n_unique()
    assert f"{count} users have no item left by --items that is not seen" in capsys.readouterr().out
    assert recommend([str(moved), "--history", "film0", "--items", "fim1"]) == 2
    assert capsys.readouterr().err == "error: items: id number 1 is unknown to the run; did you mean film1?\n"


def test_only_items_with_these_features_are_chosen(moved: Path, log: Path, here: Path) -> None:
    (here / "kinds.csv").write_text(
        "item,kind\n" + "".join(f"film{n},{'new|odd' if n % 2 else 'old'}\n" for n in range(12))
    )
    words = ["--features", "kinds.csv", "--only", "kind=odd,none", "-k", "3"]
    assert recommend([str(moved), "--users", str(log), *words, "--out", "odd.parquet"]) == 0
    found = load(moved, features="kinds.csv").recommend(
        pl.read_csv(log, separator=" ", has_header=False, new_columns=["user_id", "item_id"]),
        k=3,
        only={"kind": ["odd", "none"]},
    )
    assert pl.read_parquet("odd.parquet").equals(found)
    assert set(found["item"]) == {f"film{n}" for n in range(1, 12, 2)}


def test_ids_with_blanks_stand_between_commas(moved: Path) -> None:
    names = {"film1": "the film", "film2": "the other film"}
    served = load(moved)
    catalogue = Catalogue([names.get(raw, raw) for raw in served.items])
    known = Served(served.model, catalogue, served.facts).knows
    assert split_ids("the film, film3 film4,the other film", known) == ["the film", "film3", "film4", "the other film"]
    assert split_ids("the film", known) == ["the film"]
    assert split_ids("the film film3", known) == ["the", "film", "film3"]


@pytest.mark.parametrize(
    ("history", "says"), [("12 13", "(12, 13), so these are the most popular; ids"), ("", "is empty")]
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


def test_a_log_of_users_is_filtered_as_that_of_training_was(
    moved: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = load(moved)
    served.facts["data"]["init_args"]["where"] = "rating >= 4"
    (here / "rated.csv").write_text("user_id,item_id,timestamp,rating\nann,film1,1,5\nann,film2,2,1\n")
    for where, history in ((None, ["film1"]), ("null", ["film1", "film2"]), ("rating < 4", ["film2"])):
        settings = {**dict.fromkeys(OF_LOGS), "where": where}
        recommend_to_all(served, "rated.csv", Path(f"{where}.csv"), settings, Console(), k=3, exclude_seen=False)
        replaced = 'data.where replaces the condition of the run, "rating >= 4"' in capsys.readouterr().err
        assert replaced == (where is not None)
        assert pl.read_csv(f"{where}.csv")["item"].to_list() == served.recommend([history], 3, False)[0].items
    frame, (liked,) = pl.read_csv("rated.csv"), served.recommend([["film1"]], 3, False)
    assert served.recommend(frame, 3, False)["item"].to_list() == liked.items
    assert served.recommend(frame.drop("rating"), 3, False)["item"].to_list() != liked.items


def test_columns_have_the_names_of_training_in_a_file_a_frame_and_as_options(
    recipe: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(f"u{user}", f"i{(user + n) % 9}", 9 - n, 1) for user in range(30) for n in range(7)]
    frame = pl.DataFrame(rows, schema=["who", "what", "when", "user_id"], orient="row")
    frame.write_csv("log.csv")
    names = ["--data.user_column=who", "--data.item_column=what", "--data.time_column=when"]
    steps = ["--trainer.max_steps", "2", "--privacy", "null", "--data.path", "log.csv"]
    assert fit([str(recipe), *steps, *names, "--out", "run"]) == 0
    wanted = load("run").recommend(frame, k=2)
    assert wanted["user"].n_unique() == 30
    other = frame.select(person="who", film="what", day="when")
    other.write_csv("other.csv")
    for prefix in ("--data.", "--"):
        own = [f"{prefix}user_column=person", f"{prefix}item_column=film", f"{prefix}time_column=day"]
        out = f"{len(prefix)}.parquet"
        assert recommend(["run", "--users", "other.csv", *own, "--out", out, "-k", "2"]) == 0
        assert pl.read_parquet(out).equals(wanted)
    guessed = load("run").recommend(frame.select(user_id="who", item_id="what", timestamp="when"), k=2)
    assert guessed.equals(wanted)
