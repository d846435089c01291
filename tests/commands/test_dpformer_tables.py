"""The study of DPFormer's tables: what is trained, what is read, and that the page says what the runs say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dprec.bench import main
from dprec.benchmarks.dpformer_study.cells import (
    DATA,
    EPSILONS,
    FIGURES,
    MODELS,
    VARIANTS,
    Cell,
    all_cells,
    figure_cells,
)
from dprec.benchmarks.dpformer_study.runs import finished, rows
from dprec.cli.arguments import CommandLine
from dprec.cli.parser import parse

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]


def leave_a_run(runs: Path, cell: str, seed: int, ndcg: float, **others: object) -> None:
    folder = Cell.read(cell).folder(runs, seed)
    (folder / "logs" / "version_0").mkdir(parents=True)
    values = {
        "epsilon": 4.99, "delta": 1e-4, "noise_multiplier": 2.0, "steps": 40, "seed": seed, "seconds": 12.0,
        "stand_in": False, "protocol": "", "ndcg@10": ndcg, "hit@10": 2 * ndcg, "ndcg@10/all": 0.01, "hit@10/all": 0.02,
    }  # fmt: skip
    (folder / "metrics.json").write_text(json.dumps(values | others))
    (folder / "logs" / "version_0" / "metrics.csv").write_text(
        f"epoch,ndcg@10,step\n0,,9\n0,{ndcg / 2},19\n1,{ndcg},39\n"
    )


def test_the_page_says_what_the_runs_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    runs, page, figures = tmp_path / "runs", tmp_path / "docs" / "results.md", tmp_path / "rows.json"
    leave_a_run(runs, "movielens_spectral_former@5", 0, 0.09)
    leave_a_run(runs, "movielens_spectral_former@5", 1, 0.10)
    leave_a_run(runs, "movielens_spectral_former_plain@5", 0, 0.08)
    leave_a_run(runs, "games_spectral_former@8:0.003:1024", 0, 0.03)
    page.parent.mkdir()
    argv = ["dpformer-tables", "--runs", str(runs), "--document", str(page), "--json", str(figures)]
    assert main(argv) == 0
    assert "9.50 ± 0.71 / 19.00 ± 1.41 (2)" in capsys.readouterr().out
    text = page.read_text()
    line = next(line for line in text.splitlines() if line.startswith("| SpectralFormer"))
    assert line.split(" | ")[2] == "9.50 ± 0.71 / 19.00 ± 1.41 (2)"
    assert "| DPFormer, in the paper |  | 5.88 / 11.13 | 7.70 / 14.31 | 8.42 / 15.40 |" in text
    assert "| `movielens_spectral_former@5` | 0, 1 | 40 | 2 | 12 |" in text
    assert "3.00" not in text  # a run at another learning rate is no cell of the table
    assert len(json.loads(figures.read_text())) == 4
    for picture in ("models", "training", "tuning"):
        file = page.parent / "measured" / f"dpformer_{picture}.png"
        assert file.stat().st_size > 5000
        assert f"measured/{file.name}" in text


def test_rates_and_batches_of_the_papers_figures_are_drawn_from_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "figure7.png"
    leave_a_run(tmp_path / "runs", "games_dpformer_paper@8", 0, 0.02)
    assert main(["dpformer-tables", "--runs", str(tmp_path / "runs"), "--picture", str(picture)]) == 2
    assert "no run has another rate and batch" in capsys.readouterr().err
    for cell in figure_cells("figure7"):
        leave_a_run(tmp_path / "runs", cell.name, 0, 0.02 + 0.001 * (cell.model == "dpformer_paper"))
    assert main(["dpformer-tables", "--runs", str(tmp_path / "runs"), "--picture", str(picture)]) == 0
    assert picture.stat().st_size > 20_000


@pytest.mark.parametrize("name", FIGURES)
def test_cells_of_the_papers_figures_train_its_models(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tied or not, at the paper's width or half of it, with Re-Attention or without."""
    monkeypatch.chdir(ROOT)
    data, models, _ = FIGURES[name]
    for model in models:
        cell = next(cell for cell in figure_cells(name) if cell.model == model and cell.tuned == (0.003, 512))
        settings = parse(CommandLine.read(cell.recipe)).tree
        given = settings["model"]["init_args"]
        assert given["tied"] is ("untied" not in model)
        assert given["dim"] == (32 if "halved" in model else 64)
        assert (given["error_scale"] == 0) is model.startswith("transformer")
        assert (given["learning_rate"], settings["data"]["init_args"]["batch_size"]) == (0.003, 512)
        assert (given["blocks"], given["warmup"], settings["trainer"]["max_epochs"]) == (2, 0.2, 100)
        assert given["dropout"] == {"movielens": 0.2, "games": 0.5}[data]


def test_figures_on_generated_data_are_in_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_a_run(tmp_path, "movielens_gru@5", 0, 0.05, stand_in=True)
    assert main(["dpformer-tables", "--runs", str(tmp_path)]) == 2
    assert "generated data" in capsys.readouterr().err


@pytest.mark.parametrize("cell", ["movielens", "netflix_gru@5", "movielens_gru", "movielens_gru@x", "games_gru@5:1"])
def test_a_cell_that_is_none_is_refused(cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dpformer-tables", "--runs", str(tmp_path), "--cells", cell]) == 2
    assert f"--cells {cell}" in capsys.readouterr().err


def test_no_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dpformer-tables", "--runs", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_every_cell_has_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for data in DATA:
        for model in MODELS:
            for epsilon in EPSILONS:
                cell = Cell(data, model, epsilon)
                assert Path(cell.recipe[0]).is_file(), cell
                assert Cell.read(cell.name) == Cell.read(cell.folder(Path(), 0).parent.name) == cell
    assert set(VARIANTS) <= set(MODELS)


def test_all_cells_are_those_of_the_published_tables() -> None:
    kept = {Cell.read(run["cell"]) for run in finished([ROOT / "docs" / "measured" / "dpformer.jsonl"])}
    assert kept <= set(all_cells())


@pytest.mark.parametrize("name", FIGURES)
def test_the_papers_page_says_how_much_of_a_figure_was_run(name: str) -> None:
    kept = {Cell.read(run["cell"]) for run in finished([ROOT / "docs" / "measured" / "dpformer_figures.jsonl"])}
    line = next(line for line in (ROOT / "docs" / "papers.md").read_text().splitlines() if f"--cells {name} " in line)
    assert f"{len(kept & set(figure_cells(name)))} of the {len(figure_cells(name))} points" in line


def test_kept_runs_say_what_their_folders_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything that a table or a picture shows, from one file instead of many folders, bit for bit."""
    pytest.importorskip("matplotlib")
    folder, file, again = tmp_path / "runs", tmp_path / "study.jsonl", tmp_path / "again.jsonl"
    leave_a_run(folder, "movielens_dpformer@5", 1, 0.1 + 0.2)
    leave_a_run(folder, "movielens_dpformer@5", 0, 1 / 3)
    leave_a_run(folder, "games_spectral_former@8:0.003:1024", 0, 0.03)
    keep = ["dpformer-tables", "--runs", str(folder), "--keep"]
    assert main([*keep, str(file)]) == 0
    shown = capsys.readouterr().out
    assert [(json.loads(line)["cell"], json.loads(line)["seed"]) for line in file.read_text().splitlines()] == [
        ("games_spectral_former@8:0.003:1024", 0),
        ("movielens_dpformer@5", 0),
        ("movielens_dpformer@5", 1),
    ]
    assert finished([file]) == finished([folder])
    made = {}
    for place in (folder, file):
        page = tmp_path / place.stem / "page.md"
        page.parent.mkdir(exist_ok=True)
        assert main(["dpformer-tables", "--runs", str(place), "--document", str(page)]) == 0
        assert capsys.readouterr().out == shown
        text = page.read_text().replace(str(page), "PAGE").replace(str(place), "PLACE")
        made[place] = (text, [picture.read_bytes() for picture in sorted((page.parent / "measured").glob("*.png"))])
    assert made[folder] == made[file]
    assert len(made[file][1]) == 3
    assert main([*keep[:2], f"{file},{folder}", "--keep", str(again)]) == 0  # the same runs twice are there once
    assert again.read_bytes() == file.read_bytes()


def test_a_run_measured_again_takes_the_place_of_the_kept_one(tmp_path: Path) -> None:
    file = tmp_path / "study.jsonl"
    for round_, ndcg in enumerate((0.04, 0.05)):
        leave_a_run(tmp_path / f"runs{round_}", "games_gru@8", 0, ndcg)
        leave_a_run(tmp_path / f"runs{round_}", "games_gru@8", 1 + round_, ndcg)
        assert main(["dpformer-tables", "--runs", str(tmp_path / f"runs{round_}"), "--keep", str(file)]) == 0
    assert [(run["seed"], run["ndcg@10"]) for run in finished([file])] == [(0, 0.05), (1, 0.04), (2, 0.05)]


def test_two_runs_of_one_cell_and_seed_are_not_both_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = [tmp_path / "mine", tmp_path / "yours"]
    for place, ndcg in zip(places, (0.04, 0.05), strict=True):
        leave_a_run(place, "games_gru@8", 0, ndcg)
    assert main(["dpformer-tables", "--runs", ",".join(map(str, places))]) == 2
    assert f"{places[0]} and {places[1]} both hold games_gru@8 with seed 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--runs nowhere.jsonl", "nowhere.jsonl"),
        ("--runs broken.jsonl", "broken.jsonl, line 2 is no run of this study"),
        ("--runs bare.jsonl", "bare.jsonl, line 1 is no run of this study"),
        ("--runs mine --keep study.txt", "study.txt: give a .jsonl file"),
        ("--runs mine --keep broken.jsonl", "broken.jsonl, line 2"),
        ("--runs study.jsonl --cells games_gru@8", "name it in --runs"),
        ("--runs mine,yours --cells games_gru@8", "name it in --runs"),
    ],
)
def test_a_file_of_runs_that_is_none_is_one_line(
    line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    leave_a_run(Path("mine"), "games_gru@8", 0, 0.04)
    assert main(["dpformer-tables", "--runs", "mine", "--keep", "study.jsonl"]) == 0
    Path("broken.jsonl").write_text(Path("study.jsonl").read_text() + "{\n")
    Path("bare.jsonl").write_text('{"cell": "games_gru@8", "seed": 0}\n')
    capsys.readouterr()
    assert main(["dpformer-tables", *line.split()]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_what_is_kept_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    leave_a_run(Path("kept"), "games_gru@8", 0, 0.04)
    assert main(["dpformer-tables", "--runs", "kept", "--keep", "study.jsonl"]) == 0
    # Trained, it would be refused: there is no recipe in this folder.
    argv = ["dpformer-tables", "--runs", "study.jsonl,mine", "--cells", "games_gru@8"]
    assert main(argv) == 0
    assert main([*argv, "--model.dim", "4"]) == 2  # another model than the kept one
    assert main([*argv, "--seeds", "2"]) == 2


def test_the_page_is_what_the_kept_runs_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/results.md and docs/measured/dpformer.jsonl belong together."""
    pytest.importorskip("matplotlib")
    (tmp_path / "docs" / "measured").mkdir(parents=True)
    kept, page = "docs/measured/dpformer.jsonl", "docs/results.md"
    (tmp_path / kept).write_bytes((ROOT / kept).read_bytes())
    monkeypatch.chdir(tmp_path)
    assert main(["dpformer-tables", "--runs", kept, "--document", page]) == 0
    assert (tmp_path / page).read_text(encoding="utf-8") == (ROOT / page).read_text(encoding="utf-8")


def test_what_is_missing_is_trained_and_what_is_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    draw = np.random.default_rng(0)
    log = [f"{user} {item}" for user in range(80) for item in draw.permutation(30)[:8] + 1]
    (tmp_path / "log.txt").write_text("\n".join(log))
    argv = [
        "dpformer-tables",
        "--cells",
        "movielens_spectral_former_plain@5",
        "--runs",
        "study",
        "--data.path",
        "log.txt",
    ]
    argv += ["--data.batch_size", "20", "--model.top", "10", "--model.rank", "4", "--trainer.max_steps", "2"]
    assert main(argv) == 0
    (row,) = rows(finished([Path("study")]))
    assert (row["data"], row["model"], row["target"], row["seed"]) == ("movielens", "spectral_former_plain", 5.0, 0)
    assert row["epsilon"] == pytest.approx(5.0, abs=0.1)
    written = (tmp_path / "study/movielens_spectral_former_plain-5/seed-0/metrics.json").stat().st_mtime_ns
    assert main([*argv, "--seeds", "2"]) == 0
    assert [run["seed"] for run in finished([Path("study")])] == [0, 1]
    assert (tmp_path / "study/movielens_spectral_former_plain-5/seed-0/metrics.json").stat().st_mtime_ns == written
