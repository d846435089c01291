"""DP-FEST: rows that are chosen once, before training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from dprec.errors import UserError
from dprec.privacy.release import ExactSums, Portion, Release
from dprec.privacy.strategy import Strategy
from dprec.privacy.tables import is_among


class FEST(Strategy):
    """Trains the rows that most users look up, and leaves all others as they are.

    How many users look up a row is taken from a noisy sum, in which each user's rows have norm 1 together. Its share of
    the budget is on record before the data is looked at. Or the counts are public: `public_counts` names a CSV file
    with columns table, row and count.

    Args:
        keep: how many rows are trained, over all tables.
        share: part of the privacy budget for the counts.
        per_table: keep equally many rows of each table, as far as it has them, and not the largest counts of all.
        public_counts: where the counts come from, if not from the data.
        options: those of `Strategy`.
    """

    def __init__(
        self,
        keep: int = 10_000,
        share: float = 0.02,
        per_table: bool = False,
        public_counts: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if keep < 1:
            self.refuse("keep", keep)
        self.keep, self.share, self.per_table, self.public_counts = keep, share, per_table, public_counts
        self._counts = Release(f"row counts of {', '.join(self.tables)}", share)
        self._rows = torch.zeros(0, dtype=torch.int64)

    @property
    def releases(self) -> tuple[Release, ...]:
        return () if self.public_counts else (self._counts,)

    def begin(self, *given: Any) -> None:
        super().begin(*given)
        if self.public_counts:
            self._rows = self._largest(self._read(Path(self.public_counts)))

    def prepare(self, users: int, portions: Callable[[], Iterable[Portion]], sums: ExactSums) -> None:
        self._rows = self._largest(sums(self._counts, self.space.size, users, portions()))

    def choose(self, batch: object, among: Tensor | None) -> Tensor:
        return self._rows if among is None else self._rows[is_among(self._rows, among)]

    def phrase(self, sigma: float) -> str:
        source = "public counts" if self.public_counts else "the release"
        return f"FEST: {len(self._rows):,} rows chosen by {source}"

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rows = state["rows"]

    def _largest(self, counts: np.ndarray) -> Tensor:
        counts[self.space.padding.numpy()] = -np.inf
        if not self.per_table:
            return torch.from_numpy(np.sort(_top(counts, self.keep)))
        each, rows, start = max(1, self.keep // len(self.space.tables)), [], 0
        for table in self.space.tables.values():
            rows.append(start + np.sort(_top(counts[start : start + table.rows], each)))
            start += table.rows
        return torch.from_numpy(np.concatenate(rows))

    def _read(self, file: Path) -> np.ndarray:
        try:
            given = pl.read_csv(file, schema_overrides={"table": pl.String, "row": pl.Int64, "count": pl.Float64})
            named = {name: (part["row"], part["count"]) for (name,), part in given.group_by("table")}
        except (OSError, pl.exceptions.PolarsError) as error:
            raise UserError(f"FEST.public_counts: {file} is no CSV of table, row and count: {error}") from None
        counts = np.zeros(self.space.size)
        for name, (rows, values) in named.items():
            if name not in self.space.tables or not rows.is_between(0, self.space.tables[name].rows - 1).all():
                raise UserError(f"FEST.public_counts: {file} names rows of '{name}' that the model does not have")
            counts[self.space.flat(name, torch.from_numpy(rows.to_numpy().copy())).numpy()] = values.to_numpy()
        return counts


def _top(counts: np.ndarray, most: int) -> np.ndarray:
    most = min(most, int((counts > -np.inf).sum()))
    return np.argpartition(-counts, most - 1)[:most] if most else np.zeros(0, dtype=np.int64)
