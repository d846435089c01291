"""AdaFEST's Figure 1b: how sparse the gradients of a click model's tables are, feature by feature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row
from dprec.data import Clicks
from dprec.models import PCTR
from dprec.reporting import figure

STEPS, LARGEST = 50, 5  # as in the paper
ALL = "all features"
COLUMNS = {"feature": "feature", "rows": "rows", "touched": "rows with a gradient", "sparsity": "share without, %"}


def measure(data: Clicks, steps: int, say: Callable[[str], None] = lambda _: None) -> list[Row]:
    """Return a row for each of the largest features and one for all: the mean over the steps, which train nothing.

    A row of a table counts as touched where the gradient of the batch's mean loss has an entry other than 0.
    """
    data.setup()
    model = PCTR(**data.sizes, hidden=[16])
    tables: list[Any] = [table.weight for table in model.tables.tables]
    touched, taken = torch.zeros(len(tables), dtype=torch.float64), 0
    while taken < steps:
        for batch in data.train_dataloader():
            if taken == steps:
                break
            say(f"step {taken + 1} of {steps}")
            model.zero_grad()
            users = sum(len(part) for part in batch)
            for part in batch:
                (model.losses(part).sum() / users).backward()
            for place, weight in enumerate(tables):
                if weight.grad is not None:
                    touched[place] += int((weight.grad != 0).any(1).sum())
            taken += 1
    rows = torch.tensor([len(weight) - 1 for weight in tables])  # without the padding
    largest = rows.argsort(descending=True, stable=True)[:LARGEST].tolist()
    found = [_row(f"feature {place + 1}", int(rows[place]), float(touched[place]) / steps) for place in largest]
    return [*found, _row(ALL, int(rows.sum()), float(touched.sum()) / steps)]


def table(rows: Sequence[Row]) -> Any:
    shown = [row | {"sparsity": f"{100 * row['sparsity']:.3f}"} for row in rows]
    return report.table(shown, COLUMNS, "gradients of the tables, mean over the steps")


def picture(rows: Sequence[Row], file: Path) -> None:
    names = [f"{row['feature']}, {row['rows']:,} rows" for row in rows]
    figure.bars(names, [100 * row["sparsity"] for row in rows], "rows without a gradient, %", file)


def _row(feature: str, rows: int, touched: float) -> Row:
    return {"feature": feature, "rows": rows, "touched": touched, "sparsity": 1 - touched / rows}
