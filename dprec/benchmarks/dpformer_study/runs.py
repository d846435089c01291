"""Runs of cells: trained if they are missing, read if they are finished, and kept in one file of the study.

A finished run is one object: its cell, the content of its metrics.json, and its log. It is read from the run's folder,
or from a line of a .jsonl file such as docs/measured/dpformer.jsonl.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dprec.benchmarks.common.finish import finish
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.dpformer_study.cells import Cell
from dprec.errors import UserError
from dprec.run.saved.folder import replace_file

Run = dict[str, Any]
FILE = ".jsonl"
FIGURES = ("ndcg@10", "hit@10", "ndcg@10/all", "hit@10/all")
SHOWN = ("epsilon", "delta", "noise_multiplier", "steps", "seed", "seconds", "stand_in", "protocol", *FIGURES)


def train(cell: Cell, seed: int, runs: Path, overrides: Sequence[str]) -> None:
    """Make sure that the cell's folder holds a finished run."""
    finish(cell.folder(runs, seed), [*cell.recipe, "--seed", str(seed), *overrides])


def finished(places: Sequence[Path]) -> list[Run]:
    """Return all finished runs in these files and folders, in a fixed order."""
    found: dict[tuple[str, int], tuple[Run, Path]] = {}
    for place in places:
        for run in _in_file(place) if place.suffix == FILE else _in_folder(place):
            known, before = found.setdefault(_identity(run), (run, place))
            if known != run:
                raise UserError(
                    f"--runs: {before} and {place} both hold {run['cell']} with seed {run['seed']}, with different "
                    "figures: leave one of them out, or give the new run another --seed"
                )
    return [found[identity][0] for identity in sorted(found)]


def keep(runs: Sequence[Run], file: Path) -> list[Run]:
    """Add runs to a file, replacing those of the same cell and seed; return all runs of the file."""
    if file.suffix != FILE:
        raise UserError(f"--keep {file}: give a {FILE} file, such as docs/measured/dpformer{FILE}")
    kept = {_identity(run): run for run in [*(_in_file(file) if file.exists() else ()), *runs]}
    text = "".join(json.dumps(kept[identity], allow_nan=False) + "\n" for identity in sorted(kept))
    try:
        replace_file(file, lambda temporary: temporary.write_text(text, encoding="utf-8", newline="\n"))
    except OSError as error:
        raise UserError(f"--keep {file} cannot be written: {error.strerror}") from None
    return [kept[identity] for identity in sorted(kept)]


def rows(runs: Sequence[Run]) -> list[Row]:
    """Return the figures of runs for tables and pictures, a row for each run."""
    return [_row(run) for run in runs]


def _identity(run: Run) -> tuple[str, int]:
    return run["cell"], run["seed"]


def _in_folder(folder: Path) -> Iterator[Run]:
    for path in sorted(folder.rglob("metrics.json")):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            run = {"cell": Cell.read(path.parent.parent.name).name, **report, "log": list(_log(path.parent))}
        except (TypeError, ValueError, UserError) as error:
            raise UserError(f"{path} is no run of this study: {error}") from None
        yield _checked(run, str(path))


def _in_file(file: Path) -> Iterator[Run]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the runs in {file}: {error}") from None
    for number, line in enumerate(lines, 1):
        where = f"{file}, line {number}"
        try:
            run = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where} is no run of this study: {error}") from None
        yield _checked(run, where)


def _checked(run: Any, where: str) -> Run:
    """Check that the tables can and may show a run."""
    try:
        Cell.read(run["cell"])
        _row(run)
    except (KeyError, TypeError, UserError) as error:
        raise UserError(f"{where} is no run of this study: {error}") from None
    if run["stand_in"]:
        raise UserError(f"{where} was trained on generated data, which the tables do not show: leave it out")
    return run


def _log(folder: Path) -> Iterator[dict[str, float]]:
    """Yield what training logged, step by step, including all parts of a continued run."""
    for log in sorted(folder.glob("logs/*/metrics.csv")):
        with log.open(encoding="utf-8", newline="") as lines:
            for line in csv.DictReader(lines):
                yield {
                    key: int(value) if key in ("epoch", "step") else float(value)
                    for key, value in line.items()
                    if value
                }


def _row(run: Run) -> Row:
    cell = Cell.read(run["cell"])
    known = {"data": cell.data, "model": cell.model, "target": cell.epsilon, "tuned": cell.tuned}
    curves = {
        metric: [(line["step"] + 1, line[metric]) for line in run["log"] if metric in line]
        for metric in ("ndcg@10", "hit@10")
    }
    return known | {key: run[key] for key in SHOWN} | {"curves": curves}
