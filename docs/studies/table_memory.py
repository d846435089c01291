"""Peak memory of whole private runs with one large table: data, initialisation, steps, checkpoints and evaluation.

Each is `python -m dprec.fit` in a process of its own, with a small table and with a large one. What the peaks of
resident memory differ by is all memory that grows with the table. Freed memory is returned at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import study
from study import Row

DIM, SMALL, MB = 64, 1_000, 1e6
PROGRAM = """
import resource, sys
from dprec.fit import main
code = main(sys.argv[1:])
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""
STRATEGIES: dict[str, dict[str, Any]] = {
    "LazyDP": {"class_path": "dprec.sparsity.LazyDP"},
    "AdaFEST": {"class_path": "dprec.sparsity.AdaFEST", "init_args": {"threshold": 8.0}},
    "DP-SGD, fused": {"class_path": "dprec.sparsity.Dense"},
}
COLUMNS = {"system": "system", "rows": "rows", "table_mb": "table MB", "peak_mb": "peak MB", "times_table": "times"}


def peak(strategy: str, rows: int) -> float:
    """Return the bytes of a run with a table of so many rows, at most, on Linux."""
    network = {"dim": DIM, "bottom": [64], "top": [64], "optimizer": "sgd", "learning_rate": 0.05, "weight_decay": 0.0}
    sizes = {"synthetic_records": 7_000, "batch_size": 512, "vocabularies": [rows - 1, *[4] * 25]}
    recipe = {
        "data": {"class_path": "dprec.data.Clicks", "init_args": {"dataset": "synthetic", **sizes}},
        "model": {"class_path": "dprec.models.DLRM", "init_args": network},
        "privacy": {"noise_multiplier": 1.0, "sparsity": STRATEGIES[strategy]},
        "trainer": {"max_steps": 3, "enable_progress_bar": False},
        "checkpoint_every": 2,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "recipe.yaml")
        file.write_text(json.dumps(recipe))  # which is YAML
        command = [sys.executable, "-c", PROGRAM, str(file), "--out", f"{folder}/run"]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | study.GIVE_BACK)
    if done.returncode:
        raise SystemExit(f"{strategy} with {rows:,} rows could not be measured: {done.stderr[-300:]}")
    return 1024 * float(done.stdout.split()[-1])


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each strategy; with --quick for one."""
    rows, found = 400_000 if asked.quick else 10_000_000, []
    for strategy in list(STRATEGIES)[: 1 if asked.quick else None]:
        beyond, table = peak(strategy, rows) - peak(strategy, SMALL), 4 * (rows - SMALL) * DIM
        sizes = {"table_mb": table / MB, "peak_mb": beyond / MB, "times_table": beyond / table}
        found.append({"system": strategy, "rows": rows, "dim": DIM, "steps": 3, **sizes})
    return found


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
