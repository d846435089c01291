"""DPFormer's tables and pictures, rebuilt from finished runs; what is asked for and missing is trained first."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from dprec.benchmarks import figure, report
from dprec.benchmarks.dpformer_study import document, pictures, runs, tables
from dprec.benchmarks.dpformer_study.cells import DATA, EPSILONS, MODELS, Cell
from dprec.cli.arguments import CommandLine
from dprec.errors import UserError

RUNS = "runs/dpformer-tables"
PICTURES = {
    "NDCG@10 of each model": ("dpformer_models.png", pictures.bars),
    "NDCG@10 during training, with Re-Attention and without": ("dpformer_training.png", pictures.curves),
    "NDCG@10 over learning rate and batch size, ε = 8": ("dpformer_tuning.png", pictures.tuning),
}


def bench(line: CommandLine, console: Console) -> None:
    """Train cells, print the tables, and write what is asked for."""
    folder, seeds = Path(line.take("runs") or RUNS), line.take_number("seeds") or 1
    cells, page, json_file = line.take("cells"), line.take("document"), line.take("json")
    if page:
        figure.pyplot()
    for cell in _cells(cells):
        for seed in range(seeds):
            runs.train(cell, seed, folder, line.words)
    rows = runs.finished(folder)
    if not rows:
        raise UserError(f"--runs {folder} holds no finished run: train some with --cells movielens_spectral_former@5")
    if json_file:
        report.write_json(rows, Path(json_file))
    console.print(tables.on_screen(rows))
    if page:
        _publish(rows, Path(page), folder)


def _cells(names: str | None) -> list[Cell]:
    if names == "all":
        return [Cell(data, model, epsilon) for data in DATA for model in MODELS for epsilon in EPSILONS]
    return [Cell.read(name.strip()) for name in names.split(",")] if names else []


def _publish(rows: list[report.Row], page: Path, folder: Path) -> None:
    drawn = []
    for title, (name, draw) in PICTURES.items():
        if draw is pictures.tuning and not any(row["tuned"] for row in rows):
            continue
        picture = page.parent / "measured" / name
        draw(rows, picture)
        drawn.append((title, picture))
    document.write(rows, page, folder, drawn)
