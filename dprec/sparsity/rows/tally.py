"""How much noise sparsity strategies spared, and how much they wasted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from dprec.sparsity.rows.tables import Table


@dataclass
class Tally:
    """What the strategies did so far, over the tables they rule. How many rows were touched is not private."""

    steps: int = 0
    noised: int = 0  # rows
    entries: int = 0  # numbers in them
    untouched: int | Tensor = 0  # noised rows that no user touched

    def add(self, noised: int, entries: int, untouched: int | Tensor) -> None:
        """Count one table's rows of a step."""
        self.noised += noised
        self.entries += entries
        if isinstance(untouched, Tensor) or untouched:
            self.untouched = self.untouched + untouched

    def report(self, tables: Iterable[Table]) -> dict[str, float]:
        """Return averages over the steps; nothing where no row got noise."""
        if not self.entries:
            return {}
        dense = sum(table.parameter.numel() for table in tables)
        return {
            "rows_noised": self.noised / self.steps,
            "gradient_size_reduction": dense * self.steps / self.entries,
            "false_positives_not_private": float(self.untouched) / self.steps,
        }
