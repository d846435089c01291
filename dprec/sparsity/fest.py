"""DP-FEST: chooses rows before training, once, or again for each period, by running counts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dprec.accounting.release import Release
from dprec.errors import UserError, first_line
from dprec.sparsity.rows.kinds import Counts, RowChoice
from dprec_kernels.ordering import is_among


class FEST(RowChoice):
    """Trains the rows that most users look up, and leaves all others unchanged.

    Use it if the same rows stay important over time. A noisy sum counts the users who look up each row; a user's rows
    have norm 1 together. Its share of the budget is recorded before the data is read. Or the counts are public:
    `public_counts` names a CSV file with columns table, row and count.

    If training proceeds period by period, rows can be chosen again at the start of each, from the sum of the noisy
    counts of all periods so far. A user is in the counts of one period.

    `selection: gumbel` is Algorithm 2 of the paper (Ghazi et al. 2023): of each table the same number of rows, those
    with the largest counts under Gumbel noise. There a user's rows count 1 each. The paper states that it costs ε, but
    `keep` draws with ε each cost `keep` times ε, or as a Gaussian what `dprec.accounting.release` computes. Here the
    share of the budget determines that Gaussian, which the ledger records, and so the ε of each draw.

    Args:
        keep: how many rows are trained, over all tables.
        share: part of the privacy budget for the counts.
        selection: gaussian, or gumbel for the paper's own.
        counts: of all users before training; of the first period; or running, from period to period.
        per_table: keep equally many rows of each table, if it has as many, instead of the largest counts of all.
        public_counts: CSV file of public counts. None: count in the data.
        options: those of `Strategy`.

    >>> from dprec import Privacy
    >>> from dprec.sparsity import FEST
    >>> strategy = FEST(keep=1000, share=0.05)
    >>> [(release.what, release.share) for release in strategy.releases()]  # paid for before training
    [('row counts of *', 0.05)]
    >>> privacy = Privacy(epsilon=3, sparsity=strategy)
    """

    def __init__(
        self,
        keep: int = 10_000,
        share: float = 0.02,
        counts: Literal["all", "first", "running"] = "all",
        per_table: bool = False,
        public_counts: str | None = None,
        selection: Literal["gaussian", "gumbel"] = "gaussian",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if keep < 1:
            self.refuse("keep", keep, "give a whole number above 0")
        if not 0 < share <= 1:
            self.refuse("share", share, "give a number above 0, up to 1")
        if counts not in ("all", "first", "running"):
            self.refuse("counts", counts, "give all, first or running")
        if public_counts and counts != "all":
            self.refuse("counts", counts, "leave it out, or leave out public_counts, which have no periods")
        if selection not in ("gaussian", "gumbel"):
            self.refuse("selection", selection, "give gaussian or gumbel")
        if selection == "gumbel" and (public_counts or counts == "running"):
            self.refuse("selection", selection, "it draws rows from private counts, all or first, and shows no sums")
        self.keep, self.share, self.counts, self.selection = keep, share, counts, selection
        self.per_table, self.public_counts = per_table, public_counts
        self._rows = torch.zeros(0, dtype=torch.int64)
        self._sum = torch.zeros(0, dtype=torch.float64)  # of the noisy counts of the periods so far
        self._periods = 0
        self._resumed = False  # whether a checkpoint's state waits for its run to begin

    def releases(self, periods: int = 0) -> tuple[Release, ...]:
        if self.public_counts:
            return ()
        if self.counts == "all":
            return (self._release(None),)
        if not periods:
            raise UserError(
                f"privacy.sparsity: FEST.counts is {self.counts}, but the data has no periods: set data.period_days"
            )
        return tuple(map(self._release, range(1 if self.counts == "first" else periods)))

    def _release(self, period: int | None) -> Release:
        drawn = self.keep if self.selection == "gumbel" else 0
        return Release(f"row counts of {', '.join(self.tables)}", self.share, period, drawn)

    def begin(self, *given: Any) -> None:
        """Start from a loaded checkpoint, but never from another run's rows: its counts are in another ledger."""
        super().begin(*given)
        if not self._resumed:
            self.load_state_dict({"rows": self._rows[:0]})
        self._resumed = False
        self._rows, self._sum = self._rows.to(self.space.device), self._sum.to(self.space.device)
        if self.public_counts:
            self._rows = self._largest(self._read(Path(self.public_counts)))

    def learn(self, period: int | None, counts: Counts) -> None:
        if period is not None and period < self._periods:  # a later pass
            return
        found = counts(self._release(period))
        if period is not None:
            self._periods = period + 1
        if self.selection == "gumbel":
            self._rows = found
            return
        if period is not None:
            found = self._sum = found + self._sum if len(self._sum) else found
        self._rows = self._largest(found)

    def choose(self, batch: object, among: Tensor | None) -> Tensor:
        return self._rows if among is None else self._rows[is_among(self._rows, among)]

    def phrase(self, sigma: float) -> str:
        source = "public counts" if self.public_counts else "the release"
        if self.selection == "gumbel":
            source = "Gumbel noise on the release's counts, which shows nothing else of them"
        if self.counts == "running":
            source = "the sum of the releases so far, anew at the start of each period"
        return f"FEST: {len(self._rows):,} rows chosen by {source}"

    def state_dict(self) -> dict[str, Any]:
        running = {"sum": self._sum, "periods": torch.tensor(self._periods)} if self._periods else {}
        return {"rows": self._rows, **running}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rows, self._sum = state["rows"], state.get("sum", self._sum[:0])
        self._periods, self._resumed = int(state.get("periods", 0)), True

    def _largest(self, noisy: Tensor) -> Tensor:
        counts = noisy.cpu().numpy().copy()
        counts[self.space.padding.cpu().numpy()] = -np.inf
        if not self.per_table:
            return torch.from_numpy(np.sort(_top(counts, self.keep))).to(self.space.device)
        each, rows, start = max(1, self.keep // len(self.space.tables)), [], 0
        for table in self.space.tables.values():
            rows.append(start + np.sort(_top(counts[start : start + table.rows], each)))
            start += table.rows
        return torch.from_numpy(np.concatenate(rows)).to(self.space.device)

    def _read(self, file: Path) -> Tensor:
        import polars as pl  # here, because it takes long to import

        try:
            given = pl.read_csv(file, schema_overrides={"table": pl.String, "row": pl.Int64, "count": pl.Float64})
            named = {name: (part["row"], part["count"]) for (name,), part in given.group_by("table")}
        except (OSError, pl.exceptions.PolarsError) as error:
            raise UserError(
                f"FEST.public_counts: {file}: {first_line(error)}: give a CSV with the columns table, row, count"
            ) from None
        counts = np.zeros(self.space.size)
        for name, (rows, values) in named.items():
            if name not in self.space.tables or not rows.is_between(0, self.space.tables[name].rows - 1).all():
                raise UserError(
                    f"FEST.public_counts: {file} names rows of '{name}' that the model does not have: take them out"
                )
            counts[self.space.flat(name, torch.from_numpy(rows.to_numpy().copy())).numpy()] = values.to_numpy()
        return torch.from_numpy(counts)


def _top(counts: np.ndarray, most: int) -> np.ndarray:
    most = min(most, int((counts > -np.inf).sum()))
    return np.argpartition(-counts, most - 1)[:most] if most else np.zeros(0, dtype=np.int64)
