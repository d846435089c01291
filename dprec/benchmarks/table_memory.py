"""Peak memory of whole private runs with one large table: data, initialisation, steps, checkpoints and evaluation.

Each is `dprec.fit` in a separate process that first runs the same with a small table. The result is the difference of
the two peaks of resident memory (VmHWM): all memory that grows with the table. Freed memory is returned at once.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Group

from dprec.benchmarks.common import report
from dprec.benchmarks.common.process import GIVE_BACK, environment
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.peers.memory import forget_peak, read
from dprec.errors import UserError
from dprec.reporting import figure

ROWS, SMALL, DIM, STEPS = 10_000_000, 1_000, 64, 3
COLUMNS = {"system": "system", "rows": "rows", "table_mb": "table MB", "peak_mb": "peak MB", "times_table": "times"}
MB = 1e6
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    "LazyDP": {"class_path": "dprec.sparsity.LazyDP", "init_args": {}},
    "AdaFEST": {"class_path": "dprec.sparsity.AdaFEST", "init_args": {"threshold": 8.0}},
    "DP-SGD, fused": {"class_path": "dprec.sparsity.Dense", "init_args": {}},
}


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each strategy; with `quick` for one."""
    rows, steps = (SMALL * 20, 2) if quick else (ROWS, STEPS)
    found: list[Row] = []
    for system in list(STRATEGIES)[: 1 if quick else None]:
        say(f"{system}: {rows:,} rows")
        found.append({"system": system, "rows": rows, "dim": DIM, "steps": steps, **measured(system, rows, DIM, steps)})
    return found


def table(rows: Sequence[Row]) -> Group:
    """Return the measurements and how they were made."""
    line = (
        f"DLRM with one table of width {DIM}, {rows[0]['steps']} private steps by dprec.fit, checkpoints and "
        "evaluation included. Peak: resident memory beyond that of the same run with a small table."
    )
    return Group(report.table(rows, COLUMNS), line)


def picture(rows: Sequence[Row], file: Path) -> None:
    """Peak of each strategy, beside the table itself."""
    names, peaks = [row["system"] for row in rows], [row["times_table"] for row in rows]
    figure.bars(names, peaks, "peak memory of a run, in tables", file, beside=1.0)


def measured(system: str, rows: int, dim: int, steps: int, memory_map: str | None = None) -> dict[str, float]:
    """Return table_mb, peak_mb (minus that of a run with a small table) and the ratio of the two.

    With `memory_map`, a folder, the table is in a file there.
    """
    if sys.platform != "linux":
        raise UserError("the peak of resident memory is read from /proc: measure it on Linux")
    words = [system, str(rows), str(dim), str(steps), memory_map or ""]
    done = subprocess.run(
        [sys.executable, "-m", "dprec.benchmarks.table_memory", *words],
        capture_output=True, text=True, env=environment(GIVE_BACK),
    )  # fmt: skip
    if done.returncode:
        raise UserError(f"{system} with {rows:,} rows could not be measured: {done.stderr.strip().splitlines()[-1:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(argv: Sequence[str]) -> None:
    system, (rows, dim, steps), memory_map = argv[0], map(int, argv[1:4]), argv[4] or None
    answers = sys.stdout
    with TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        peaks = []
        for name, size in (("warm", SMALL), ("small", SMALL), ("large", rows)):
            gc.collect()
            forget_peak()
            _fit(Path(folder, name), system, size, dim, steps, memory_map)
            peaks.append(read("/proc/self/status", "VmHWM"))
    peak, table = peaks[2] - peaks[1], 4 * (rows - SMALL) * dim
    print(json.dumps({"table_mb": table / MB, "peak_mb": peak / MB, "times_table": peak / table}), file=answers)


def _fit(folder: Path, system: str, rows: int, dim: int, steps: int, memory_map: str | None) -> None:
    from dprec.fit import main as fit

    recipe = {
        "data": {
            "class_path": "dprec.data.Clicks",
            "init_args": {
                "dataset": "synthetic", "synthetic_records": 7_000, "batch_size": 512,
                "vocabularies": [rows - 1, *[4] * 25],
            },
        },
        "model": {
            "class_path": "dprec.models.DLRM",
            "init_args": {
                "dim": dim, "bottom": [64], "top": [64], "optimizer": "sgd", "learning_rate": 0.05, "weight_decay": 0.0,
            },
        },
        "privacy": {"noise_multiplier": 1.0, "sparsity": STRATEGIES[system]},
        "trainer": {"max_steps": steps, "enable_progress_bar": False},
        "checkpoint_every": 2,
    }  # fmt: skip
    if memory_map is not None:
        recipe["model"]["init_args"]["memory_map"] = memory_map  # type: ignore[index]
    folder.mkdir()
    file = folder / "recipe.yaml"
    file.write_text(json.dumps(recipe))  # which is YAML
    if fit([str(file), "--out", str(folder / "run")]):
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
