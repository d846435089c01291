"""The study of DPFormer's tables: what is trained, what is read, and that the page says what the runs say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dprec.cli.arguments import CommandLine
from dprec.cli.parser import parse
from tests.commands.support import ROOT
from tests.studies import load, run

study = load("dpformer_tables")
Cell = study.Cell


def measure(*words: str) -> list[dict]:
    return study.measure(study.PARSER.parse_args(words))  # type: ignore[no-any-return]


def test_the_page_is_what_the_kept_runs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/results.md belongs to docs/measured/dpformer.jsonl, eight_logs.jsonl and held_out_users.json."""
    pytest.importorskip("matplotlib")
    (tmp_path / "docs" / "measured").mkdir(parents=True)
    kept, page = "docs/measured/dpformer.jsonl", "docs/results.md"
    for file in (kept, "docs/measured/eight_logs.jsonl", "docs/measured/held_out_users.json"):
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
    text = (ROOT / page).read_text(encoding="utf-8")
    (tmp_path / page).write_text(re.sub(r"(\|---\|\n)(?:\|.*\n)+", r"\1", text), encoding="utf-8")  # no figure
    monkeypatch.chdir(tmp_path)
    measure("--runs", kept, "--document", page)
    assert (tmp_path / page).read_text(encoding="utf-8") == (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", study.FIGURES)
def test_cells_of_the_papers_figures_train_its_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied or not, at the paper's width or half of it, with Re-Attention or without."""
    monkeypatch.chdir(ROOT)
    data, models, _ = study.FIGURES[name]
    for model in models:
        cell = next(cell for cell in study.cells_of(name) if cell.model == model and cell.tuned == (0.003, 512))
        settings = parse(CommandLine.read(cell.recipe)).tree
        given = settings["model"]["init_args"]
        assert given["tied"] is ("untied" not in model)
        assert given["dim"] == (32 if "halved" in model else 64)
        assert (given["error_scale"] == 0) is model.startswith("transformer")
        assert (given["learning_rate"], settings["data"]["init_args"]["batch_size"]) == (0.003, 512)
        assert (given["blocks"], given["warmup"], settings["trainer"]["max_epochs"]) == (2, 0.2, 100)
        assert given["dropout"] == {"movielens": 0.2, "games": 0.5}[data]


@pytest.mark.parametrize("name", study.FIGURES)
def test_the_papers_page_says_how_much_of_a_figure_was_run(name: str) -> None:
    kept = {Cell.read(run["cell"]) for run in study.finished([ROOT / "docs/measured/dpformer_figures.jsonl"])}
    line = next(line for line in (ROOT / "docs/papers.md").read_text().splitlines() if f"--cells {name} " in line)
    wanted = set(study.cells_of(name))
    assert f"{len(kept & wanted)} of the {len(wanted)} points" in line


@pytest.mark.full
def test_a_cell_is_trained(tmp_path: Path) -> None:
    (row,) = run(tmp_path, "dpformer_tables")
    assert (row["cell"], row["seed"], row["steps"], row["stand_in"]) == ("movielens_dpformer@8", 0, 2, True)
