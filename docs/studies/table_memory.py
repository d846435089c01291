"""Peak memory of whole private runs with one large table: data, initialisation, steps, checkpoints and evaluation.

Each is `python -m dprec.fit` in a process of its own, with a small table and with a large one. What the peaks of
resident memory differ by is all memory that grows with the table. Freed memory is returned at once.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

import study
from study import Row

DIM, SMALL, MB = 64, 1_000, 1e6
STRATEGIES: dict[str, dict[str, Any]] = {
    "LazyDP": {"class_path": "dprec.sparsity.LazyDP"},
    "AdaFEST": {"class_path": "dprec.sparsity.AdaFEST", "init_args": {"threshold": 8.0}},
    "DP-SGD, fused": {"class_path": "dprec.sparsity.Dense"},
}
COLUMNS = {"system": "system", "rows": "rows", "table_mb": "table MB", "peak_mb": "peak MB", "times_table": "times"}


def run(strategy: str, rows: int) -> Iterator[Row]:
    """Train with a table of so many rows."""
    network = {"dim": DIM, "bottom": [64], "top": [64], "optimizer": "sgd", "learning_rate": 0.05, "weight_decay": 0.0}
    sizes = {"synthetic_records": 7_000, "batch_size": 512, "vocabularies": [rows - 1, *[4] * 25]}
    recipe = {
        "data": {"class_path": "dprec.data.Clicks", "init_args": {"dataset": "synthetic", **sizes}},
        "model": {"class_path": "dprec.models.DLRM", "init_args": network},
        "privacy": {"noise_multiplier": 1.0, "sparsity": STRATEGIES[strategy]},
        "trainer": {"max_steps": 3, "enable_progress_bar": False},
        "checkpoint_every": 2,
    }
    with TemporaryDirectory() as folder:
        file = Path(folder, "recipe.yaml")
        file.write_text(yaml.safe_dump(recipe))
        yield {}
        yield study.fit(Path(folder, "run"), str(file))


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each strategy; with --quick for one."""
    rows, found = 400_000 if asked.quick else 10_000_000, []
    for strategy in list(STRATEGIES)[: 1 if asked.quick else None]:
        beyond, table = study.peak(run, strategy, rows) - study.peak(run, strategy, SMALL), 4 * (rows - SMALL) * DIM
        sizes = {"table_mb": table / MB, "peak_mb": beyond / MB, "times_table": beyond / table}
        found.append({"system": strategy, "rows": rows, "dim": DIM, "steps": 3, **sizes})
    return found


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
