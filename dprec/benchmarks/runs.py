"""Where a whole run's time goes: start and imports, reading, planning, training, evaluation, and the rest.

Each run is `dprec fit RECIPE` in a process of its own, with one thread and with two. Seconds are the clock's; those of
the processors stand beside them, since on a machine that others share the clock also counts their work.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Group

from dprec.benchmarks.common import report
from dprec.benchmarks.common.process import environment
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.common.timed_run import STAGES
from dprec.cli.arguments import whole_number
from dprec.errors import UserError
from dprec.reporting import figure

RECIPES = ("quickstart", "movielens_dpformer", "games_dpformer", "criteo_adafest", "dlrm_lazydp")
OPTIONS = ("recipes", "threads", "rounds")
COLUMNS = {"recipe": "recipe", "threads": "threads", "seconds": "seconds", "spread": "of the rounds"} | {
    stage: stage for stage in STAGES
} | {"cpu_seconds": "CPU", "training_share": "training"}  # fmt: skip
# With --quick: a few users or records, of other recipes as many as always, and two steps.
SHORT = {
    "quickstart": ("--data.synthetic_users", "60", "--data.synthetic_items", "40", "--data.batch_size", "15"),
    "criteo_adafest": ("--data.dataset", "synthetic", "--data.synthetic_records", "700", "--data.batch_size", "50"),
}


def run(
    quick: bool,
    say: Callable[[str], None],
    recipes: str | None = None,
    threads: str | None = None,
    rounds: str | None = None,
) -> list[Row]:
    """Return a row for each recipe and number of threads: medians of so many rounds, which take turns."""
    names = tuple(recipes.split(",")) if recipes else tuple(SHORT) if quick else RECIPES
    many = [whole_number("threads", each) for each in (threads or ("1" if quick else "1,2")).split(",")]
    taken: dict[tuple[str, int], list[dict[str, list[float]]]] = {(n, t): [] for n in names for t in many}
    for number in range(whole_number("rounds", rounds or ("1" if quick else "3"))):
        for (name, count), found in taken.items():
            say(f"round {number + 1}: {name}, threads: {count}")
            short = (*SHORT.get(name, ()), "--trainer.max_steps", "2") if quick else ()
            found.append(timed(name, count, short))
    return [_row(name, count, found) for (name, count), found in taken.items()]


def timed(recipe: str, threads: int, overrides: Sequence[str]) -> dict[str, list[float]]:
    """Return the seconds of each stage of a run, by the clock and of the processors."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "stages.json"
        asked = [recipe, "--out", f"{folder}/run", "--trainer.enable_progress_bar", "false", *overrides]
        command = [sys.executable, "-m", "dprec.benchmarks.common.timed_run", str(file), str(time.time()), *asked]
        done = subprocess.run(command, env=environment({}, threads), capture_output=True, text=True)
        if done.returncode or not file.exists():
            raise UserError(f"dprec fit {recipe} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        found: dict[str, list[float]] = json.loads(file.read_text())
    return found


def table(rows: Sequence[Row]) -> Group:
    """Return the stages of every run."""
    return Group(report.table(rows, COLUMNS), f"Seconds of a whole run and of its stages. {report.machine()}")


def picture(rows: Sequence[Row], file: Path) -> None:
    """Draw the share of training."""
    names = [f"{row['recipe']}, {row['threads']}" for row in rows]
    figure.bars(names, [row["training_share"] for row in rows], "training's share of a run", file)


def _row(recipe: str, threads: int, found: Sequence[dict[str, list[float]]]) -> Row:
    stages = np.median([each["clock"] for each in found], axis=0)
    whole = [sum(each["clock"]) for each in found]
    return {
        "recipe": recipe,
        "threads": threads,
        "seconds": float(np.median(whole)),
        "spread": [min(whole), max(whole)],
        **{stage: float(seconds) for stage, seconds in zip(STAGES, stages, strict=True)},
        "cpu_seconds": float(np.median([sum(each["cpu"]) for each in found])),
        "training_share": float(stages[STAGES.index("train")] / stages.sum()),
    }
