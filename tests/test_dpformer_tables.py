"""The study of DPFormer's tables: what is trained, what is read, and that the page says what the runs say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dprec.cli.arguments import CommandLine
from dprec.cli.parser import parse
from dprec.errors import UserError
from tests.commands.support import ROOT
from tests.studies import load, run

study = load("dpformer_tables")
Cell = study.Cell
VALUES = {
    "epsilon": 4.99, "delta": 1e-4, "noise_multiplier": 2.0, "steps": 40, "seconds": 12.0, "stand_in": False,
    "protocol": "", "ndcg@10/all": 0.01, "hit@10/all": 0.02,
}  # fmt: skip


def leave_a_run(runs: Path, cell: str, seed: int, ndcg: float, **others: object) -> None:
    folder = Cell.read(cell).folder(runs, seed)
    (folder / "logs" / "version_0").mkdir(parents=True)
    figures = {"seed": seed, "ndcg@10": ndcg, "hit@10": 2 * ndcg}
    (folder / "metrics.json").write_text(json.dumps(VALUES | figures | others))
    (folder / "logs" / "version_0" / "metrics.csv").write_text(
        f"epoch,ndcg@10,step\n0,,9\n0,{ndcg / 2},19\n1,{ndcg},39\n"
    )


def measure(*words: str) -> list[dict]:
    return study.measure(study.PARSER.parse_args(words))  # type: ignore[no-any-return]


def test_the_page_is_what_the_kept_runs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/results.md belongs to docs/measured/dpformer.jsonl and eight_logs.jsonl."""
    pytest.importorskip("matplotlib")
    (tmp_path / "docs" / "measured").mkdir(parents=True)
    kept, page = "docs/measured/dpformer.jsonl", "docs/results.md"
    for file in (kept, "docs/measured/eight_logs.jsonl"):
        (tmp_path / file).write_bytes((ROOT / file).read_bytes())
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


def test_every_cell_has_its_recipe() -> None:
    for data in study.DATA:
        for model in study.MODELS:
            cell = Cell(data, model, 5.0)
            assert (ROOT / cell.recipe[0]).is_file(), cell
            assert Cell.read(cell.name) == Cell.read(cell.folder(Path(), 0).parent.name) == cell
    assert set(study.VARIANTS) <= set(study.MODELS)


@pytest.mark.parametrize("cell", ["movielens", "netflix_gru@5", "movielens_gru", "movielens_gru@x", "games_gru@5:1"])
def test_a_cell_that_is_none_is_refused(cell: str) -> None:
    with pytest.raises(UserError, match=f"{cell} is no cell"):
        study.cells_of(cell)


@pytest.mark.parametrize("name", study.FIGURES)
def test_the_papers_page_says_how_much_of_a_figure_was_run(name: str) -> None:
    kept = {Cell.read(run["cell"]) for run in study.finished([ROOT / "docs/measured/dpformer_figures.jsonl"])}
    line = next(line for line in (ROOT / "docs/papers.md").read_text().splitlines() if f"--cells {name} " in line)
    wanted = set(study.cells_of(name))
    assert f"{len(kept & wanted)} of the {len(wanted)} points" in line


def test_kept_runs_say_what_their_folders_say_and_new_ones_take_their_place(tmp_path: Path) -> None:
    file, folders = tmp_path / "study.jsonl", [tmp_path / "first", tmp_path / "second"]
    leave_a_run(folders[0], "movielens_dpformer@5", 1, 0.1 + 0.2)
    leave_a_run(folders[0], "movielens_dpformer@5", 0, 1 / 3)
    measure("--runs", str(folders[0]), "--keep", str(file))
    assert study.finished([file]) == study.finished([folders[0]])
    assert study.finished([file, folders[0]]) == study.finished([file])  # the same runs twice are there once
    leave_a_run(folders[1], "movielens_dpformer@5", 0, 0.5)
    with pytest.raises(UserError, match="holds another run of movielens_dpformer@5 with seed 0"):
        study.finished([file, folders[1]])
    measure("--runs", str(folders[1]), "--keep", str(file))
    assert [(run["seed"], run["ndcg@10"]) for run in study.finished([file])] == [(0, 0.5), (1, 0.1 + 0.2)]


def test_figures_on_generated_data_are_in_no_table(tmp_path: Path) -> None:
    leave_a_run(tmp_path, "movielens_gru@5", 0, 0.05, stand_in=True)
    with pytest.raises(UserError, match="generated data"):
        measure("--runs", str(tmp_path))
    with pytest.raises(UserError, match="holds no finished run"):
        measure("--runs", str(tmp_path / "none"))
    with pytest.raises(UserError, match="name it in --runs"):
        measure("--runs", "mine,yours", "--cells", "games_gru@8")


@pytest.mark.full
def test_a_cell_is_trained(tmp_path: Path) -> None:
    (row,) = run(tmp_path, "dpformer_tables")
    assert (row["cell"], row["seed"], row["steps"], row["stand_in"]) == ("movielens_dpformer@8", 0, 2, True)
