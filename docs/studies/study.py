"""What the studies share: a command line, runs of `dprec.fit`, turns of timing, a table and a picture.

A study is a script that makes the figures of a page of docs: `python docs/studies/NAME.py`. It uses what dprec offers
everybody. `--quick` takes tiny sizes, which only shows that everything runs.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dprec import fit as training
from dprec.errors import UserError

Row = dict[str, Any]
Points = Sequence[tuple[float, float]]
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}
COLOURS = ("#c2410c", "#64748b", "#0369a1", "#16a34a", "#a855f7", "#94a3b8", "#0f172a", "#7dd3fc")


def parser(study: str, fits: bool = False) -> argparse.ArgumentParser:
    """Return the options that every study has, and those of one that trains runs; `study` is its docstring."""
    made = argparse.ArgumentParser(description=study.splitlines()[0])
    made.add_argument("--quick", action="store_true", help="tiny sizes: only shows that everything runs")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the rows")
    made.add_argument("--picture", type=Path, metavar="FILE", help="draw them; needs matplotlib")
    made.add_argument("--rows", type=Path, metavar="FILE", help="show the rows that --json wrote; measure nothing")
    if fits:
        made.add_argument("--runs", type=Path, metavar="FOLDER", help="where the runs are; stopped ones are continued")
        made.set_defaults(fits=[])
    return made


def main(
    options: argparse.ArgumentParser,
    measure: Callable[[argparse.Namespace], list[Row]],
    columns: Mapping[str, str] | Callable[[Sequence[Row]], None],
    draw: Callable[[Sequence[Row], Path], None] | None = None,
) -> list[Row]:
    """Measure or read the rows, print them, write them and draw them.

    `columns` are headings by key, or a function that prints the rows. Where options have `fits`, words that they do
    not know are settings of `dprec.fit`.
    """
    asked, words = options.parse_known_args()
    if hasattr(asked, "fits"):
        asked.fits = words
    elif words:
        options.error(f"unknown: {' '.join(words)}")
    if draw is None and asked.picture:
        options.error("this study draws no picture")
    try:
        rows = json.loads(asked.rows.read_text()) if asked.rows else measure(asked)
        if asked.json:
            asked.json.parent.mkdir(parents=True, exist_ok=True)
            asked.json.write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n")
        columns(rows) if callable(columns) else table(rows, columns)
        if asked.picture and draw:
            draw(rows, asked.picture)
    except UserError as error:
        sys.exit(f"error: {error}")
    return rows  # type: ignore[no-any-return]


def fit(folder: Path, *words: str) -> Row:
    """Return the metrics of a run of `dprec.fit`: one that is finished is read, one that was stopped goes on."""
    settings, metrics = folder.parent / f"{folder.name}.words", folder / "metrics.json"
    if settings.exists() and settings.read_text() != " ".join(words):
        raise UserError(f"{folder} holds a run with other settings: give another --runs")
    if not metrics.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(" ".join(words))
        stopped = (folder / "checkpoints" / "last.ckpt").exists()
        if code := training.main(["--resume", str(folder)] if stopped else [*words, "--out", str(folder)]):
            raise UserError(f"{folder}: training ended with exit code {code}")
    found: Row = json.loads(metrics.read_text(encoding="utf-8"))
    return found


def peak(work: Callable[..., Iterator[Any]], *given: Any) -> float:
    """Return the bytes that work adds to the largest resident memory, on Linux: in a process of its own.

    What comes before the first `yield` of the generator does not count. Freed memory is returned at once.
    """
    os.environ.update(GIVE_BACK)  # which the new process reads as it starts
    with ProcessPoolExecutor(1, get_context("spawn")) as own:
        return own.submit(_peak, work, given).result()


def _peak(work: Callable[..., Iterator[Any]], given: tuple[Any, ...]) -> float:
    steps = work(*given)
    next(steps)
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in steps:
        pass
    return 1024.0 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin)


def words(settings: Mapping[str, object]) -> list[str]:
    """Return settings as words of a command line.

    >>> words({"data.days": 10, "model.hidden": [64]})
    ['--data.days', '10', '--model.hidden', '[64]']
    """
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def turns(
    steps: Mapping[Any, Callable[..., object]], rounds: int, batches: Mapping[Any, Iterator[Any]] | None = None
) -> dict[Any, list[float]]:
    """Return for each system the processor's seconds of the faster of two steps in each round.

    Systems take turns, so that whatever else the machine does hits all alike; the order of a round is drawn. A system
    with batches is given one in each step; reading it is not timed.
    """
    given = batches or {}
    seconds: dict[Any, list[float]] = {name: [] for name in steps}
    names, order = list(steps), np.random.default_rng(0)
    for name, step in steps.items():
        step(*_next(given.get(name)))
    for _ in range(rounds):
        for place in order.permutation(len(names)):
            taken = []
            for _ in range(2):
                batch = _next(given.get(names[place]))
                begin = time.process_time()
                steps[names[place]](*batch)
                taken.append(time.process_time() - begin)
            seconds[names[place]].append(min(taken))
    return seconds


def _next(batches: Iterator[Any] | None) -> tuple[Any, ...]:
    return () if batches is None else (next(batches),)


def table(rows: Sequence[Row], columns: Mapping[str, str], title: str = "") -> None:
    """Print the columns that some row has a value in."""
    shown = {key: name for key, name in columns.items() if any(row.get(key) not in (None, "") for row in rows)}
    made = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", padding=(0, 0, 0, 1))
    for key, name in shown.items():
        words = all(isinstance(row.get(key, ""), str) for row in rows)
        made.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        made.add_row(*(cell(row.get(key)) for key in shown))
    Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False).print(made)


def cell(value: object) -> str:
    """
    >>> [cell(value) for value in (None, 1234567, 0.01234, 123.4, [0.912, 1.1])]
    ['', '1,234,567', '0.0123', '123', '0.912–1.1']
    """
    if isinstance(value, (list, tuple)):
        return "–".join(map(cell, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def slope(points: Points) -> float:
    """Return the exponent of y in x, by least squares in log-log.

    >>> round(slope([(10, 0.5), (100, 0.05), (1000, 0.005)]), 6)
    -1.0
    """
    x, y = np.log(points).T
    return float(np.polyfit(x, y, 1)[0])


def lines(panels: Mapping[str, Mapping[str, Points]], file: Path, across: str, up: str, log: str = "xy") -> None:
    """Draw a panel for each title, with a line for each name in it."""
    plt = pyplot()
    drawn, places = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 3.6), squeeze=False, layout="constrained")
    for panel, (title, named) in zip(places[0], panels.items(), strict=True):
        for colour, (name, points) in zip(COLOURS * 3, named.items(), strict=False):
            marker = {"linestyle": "--"} if name.startswith("∝") else {"marker": "o", "markersize": 4}
            panel.plot(*zip(*sorted(points), strict=True), color=colour, label=name, **marker)
        panel.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear")
        panel.set(xlabel=across, ylabel=up)
        dress(panel, title)
        panel.legend(frameon=False, fontsize=7)
    save(plt, drawn, file)


def pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise UserError("--picture needs matplotlib: pip install matplotlib") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def dress(panel: Any, title: str = "") -> None:
    panel.set_title(title, loc="left", fontsize=10, fontweight="bold")
    panel.spines[["top", "right"]].set_visible(False)


def save(plt: Any, drawn: Any, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(file, dpi=160)
    plt.close(drawn)
