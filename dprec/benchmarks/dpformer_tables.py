"""DPFormer's tables and pictures, rebuilt from finished runs; missing runs that are asked for are trained first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dprec.benchmarks.common import report
from dprec.benchmarks.dpformer_study import document, pictures, runs, tables
from dprec.benchmarks.dpformer_study.cells import FIGURES, Cell, all_cells, figure_cells, grid_cells
from dprec.cli.arguments import CommandLine
from dprec.errors import UserError
from dprec.reporting import figure

RUNS = "runs/dpformer-tables"
PICTURES = {
    "NDCG@10 of each model": ("dpformer_models.png", pictures.bars),
    "NDCG@10 and HIT@10 during training, with Re-Attention and without": ("dpformer_training.png", pictures.curves),
    "NDCG@10 over learning rate and batch size": ("dpformer_tuning.png", pictures.tuning),
}


SWITCHES = ()


def bench(line: CommandLine, console: Console) -> None:
    """Train cells, print the tables, and write the requested files."""
    places = [Path(place.strip()) for place in (line.take("runs") or RUNS).split(",")]
    seeds, cells, kept = line.take_number("seeds") or 1, cells_of(line.take("cells")), line.take("keep")
    page, json_file, picture = line.take("document"), line.take("json"), line.take("picture")
    if page or picture:
        figure.pyplot()
    if cells:
        _train([(cell, seed) for cell in cells for seed in range(seeds)], places, line.words)
    found = runs.finished(places)
    if not found:
        where = ", ".join(map(str, places))
        raise UserError(f"--runs {where} holds no finished run: train some with --cells movielens_spectral_former@5")
    if kept:
        found = runs.keep(found, Path(kept))
        places = [Path(kept)]
    rows = runs.rows(found)
    if json_file:
        report.write_json(rows, Path(json_file))
    console.print(tables.on_screen(rows))
    if picture:
        _tuning(rows, cells, Path(picture))
    if page:
        _publish(rows, Path(page), places)


def _train(wanted: Sequence[tuple[Cell, int]], places: Sequence[Path], overrides: Sequence[str]) -> None:
    """Train missing runs, in the only folder among the places."""
    folders = [place for place in places if place.suffix != runs.FILE]
    if len(folders) != 1:
        raise UserError("--cells trains in one folder: name it in --runs, such as --runs runs/dpformer-tables")
    # The runs in a file were trained without overrides; a run with overrides is another run.
    files = [] if overrides else [place for place in places if place.suffix == runs.FILE]
    there = {(run["cell"], run["seed"]) for run in runs.finished(files)}
    for cell, seed in wanted:
        if (cell.name, seed) not in there:
            runs.train(cell, seed, folders[0], overrides)


def cells_of(names: str | None) -> list[Cell]:
    """Return the cells that --cells names."""
    if names in FIGURES:
        return figure_cells(names)
    if names in ("all", "grid"):
        return all_cells() if names == "all" else grid_cells()
    return [Cell.read(name.strip()) for name in names.split(",")] if names else []


def _tuning(rows: Sequence[report.Row], cells: Sequence[Cell], picture: Path) -> None:
    """Draw rates and batches, of the cells that are asked for or else of all."""
    asked = {(cell.data, cell.model, cell.epsilon) for cell in cells}
    chosen = [row for row in rows if not asked or (row["data"], row["model"], row["target"]) in asked]
    if not any(row["tuned"] for row in chosen):
        raise UserError(f"--picture {picture}: no run has another rate and batch; --cells figure2 trains some")
    pictures.tuning(chosen, picture)


def _publish(rows: Sequence[report.Row], page: Path, places: Sequence[Path]) -> None:
    drawn = []
    for title, (name, draw) in PICTURES.items():
        if draw is pictures.tuning and not any(row["tuned"] for row in rows):
            continue
        picture = page.parent / "measured" / name
        draw(rows, picture)
        drawn.append((title, picture))
    document.write(rows, page, places, drawn)
