from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dprec.cli.command import print_json
from dprec.data import Catalogue
from dprec.recommend import main as recommend
from dprec.run.checkpoints import load_run
from dprec.run.folder import checkpoint_of
from dprec.run.serving import Recommendations
from tests.commands.support import environment


@pytest.fixture
def moved(trained: Path, here: Path) -> Path:
    """A checkpoint alone, far from its data."""
    (here / "only.ckpt").write_bytes((trained / "checkpoints/last.ckpt").read_bytes())
    return here / "only.ckpt"


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> dict:
    capsys.readouterr()
    assert recommend([*args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_items_are_the_models_best_unseen_ones(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = answer(capsys, str(moved), "--history", "film3, film4 film5", "-k", "4")
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
    assert sorted(answer(capsys, str(moved), "--history", history)["items"]) == ["film10", "film11"]
    assert len(answer(capsys, str(moved), "--history", history, "-k", "99", "--allow-seen")["items"]) == 12


def test_a_history_may_be_longer_than_the_model_sees(moved: Path) -> None:
    served = Recommendations.of_run(str(moved), count=3, exclude_seen=False)
    long = [f"film{n % 12}" for n in range(50)]
    assert served.answer(long, "")["items"] == served.answer(long[-10:], "")["items"]


def test_a_history_without_a_known_item_is_told_what_ids_look_like(moved: Path) -> None:
    assert (
        "give ids of the run, such as film" in Recommendations.of_run(str(moved)).answer(["12"], "--history")["error"]
    )


def test_unknown_items_are_skipped_with_a_warning(moved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recommend([str(moved), "--history", "film1 what film2", "--json"])
    said = capsys.readouterr()
    assert "what" in said.err
    assert "film1" not in said.err
    assert json.loads(said.out)["items"] == answer(capsys, str(moved), "--history", "film1 film2")["items"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("h.txt", "film1 film2\n\nnothing known\nfilm3\n"),
        ("h.jsonl", '["film1", "film2"]\n{"history": ["nothing", "known"]}\n["film3"]\n'),
    ],
)
def test_a_file_of_histories(moved: Path, here: Path, capsys: pytest.CaptureFixture[str], name: str, text: str) -> None:
    (here / name).write_text(text)
    assert recommend([str(moved), "--file", name, "-k", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["history"] for line in lines] == [["film1", "film2"], ["nothing", "known"], ["film3"]]
    assert "items" not in lines[1]
    assert "known" in lines[1]["error"]
    assert lines[2]["items"] == answer(capsys, str(moved), "--history", "film3", "-k", "2")["items"]
    assert len(lines[2]["scores"]) == 2


@pytest.mark.parametrize("text", ["film1 film2\nfilm3\n", '["film1", "film2"]\n["film3"]\n'])
def test_histories_from_standard_input(
    moved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert recommend([str(moved), "--file", "-", "-k", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["history"] for line in lines] == [["film1", "film2"], ["film3"]]


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


def test_json_stays_exact_in_ascii(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    monkeypatch.setattr("sys.stdout", stream)
    print_json({"items": ["caf\xe9"]})
    stream.seek(0)
    assert json.loads(stream.read()) == {"items": ["caf\xe9"]}


def test_the_table_shows_raw_ids(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recommend([str(trained), "--history", "film1", "-k", "3"]) == 0
    assert capsys.readouterr().out.count("film") == 3


def test_a_run_folder_and_its_checkpoint_are_the_same_run(trained: Path, here: Path) -> None:
    shutil.copytree(trained, here / "copy")
    assert checkpoint_of("copy") == Path("copy/checkpoints/last.ckpt")
