"""Runs of cells: trained where they are missing, and read where they are finished."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from dprec.benchmarks.dpformer_study.cells import Cell
from dprec.benchmarks.finish import finish
from dprec.benchmarks.report import Row
from dprec.errors import UserError

FIGURES = ("ndcg@10", "hit@10", "ndcg@10/all", "hit@10/all")
KEPT = ("epsilon", "delta", "noise_multiplier", "steps", "seed", "seconds", "stand_in", "protocol", *FIGURES)


def train(cell: Cell, seed: int, runs: Path, overrides: Sequence[str]) -> None:
    """Leave a finished run of this cell in its folder."""
    finish(cell.folder(runs, seed), [*cell.recipe, "--seed", str(seed), *overrides])


def finished(runs: Path) -> list[Row]:
    """Return a row for every finished run below a folder, in the order of their paths."""
    return [_row(path) for path in sorted(runs.rglob("metrics.json"))]


def _row(path: Path) -> Row:
    try:
        cell = Cell.read(path.parent.parent.name)
        metrics = json.loads(path.read_text())
        row: Row = {key: metrics[key] for key in KEPT}
    except (KeyError, ValueError, UserError) as error:
        raise UserError(f"{path} is no run of this study: {error}") from None
    if row["stand_in"]:
        raise UserError(f"{path} was trained on generated data: its figures belong in no table")
    known = {"data": cell.data, "model": cell.model, "target": cell.epsilon, "tuned": cell.tuned}
    return known | row | {"curve": list(_curve(path.parent))}


def _curve(folder: Path) -> Iterator[tuple[int, float]]:
    """Yield (step, NDCG@10) of the evaluations during training, of all parts of a run that was continued."""
    for log in sorted(folder.glob("logs/*/metrics.csv")):
        with log.open() as lines:
            for line in csv.DictReader(lines):
                if line.get("ndcg@10"):
                    yield int(line["step"]) + 1, float(line["ndcg@10"])
