"""Reads, settles and updates all tables on a GPU at once, if they owe the noise of the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity.lazy.recursion import Decayed
from dprec.sparsity.lazy.tables import Aggregated, LazyTable, refuse_unread
from dprec.sparsity.rows.kinds import Rates
from dprec_kernels import lazy_noise, sparse_update
from dprec_kernels.ordering import ascending, is_among
from dprec_kernels.paths import by_numpy, lies_plainly
from dprec_kernels.tables import Tables, spread


class FusedTables:
    """Tables that share one history of steps, until one of them steps without the others.

    Rows are numbered across all tables. Each table gets the noise that it would draw by itself.
    """

    def __init__(self, lazy: Sequence[Aggregated]) -> None:
        self.lazy, sizes = list(lazy), [len(each.values) for each in lazy]
        self._tables = Tables.of([each.values for each in lazy])
        self.settled = torch.cat([each.settled for each in lazy])
        self._begins = [0, *accumulate(sizes)]
        self._padding = torch.cat([each.padding + begin for each, begin in zip(lazy, self._begins, strict=False)])
        for each, own in zip(lazy, self.settled.split(sizes), strict=True):
            each.settled = own
        self._begin_history()

    @property
    def tables(self) -> Tables:
        """The tables at their present addresses."""
        if any(e.values.data_ptr() != known.data_ptr() for e, known in zip(self.lazy, self._tables.each, strict=True)):
            self._tables = Tables.of([each.values for each in self.lazy])
        return self._tables

    @staticmethod
    def fits(lazy: Sequence[LazyTable]) -> bool:
        """Whether these are several tables, all on one GPU, that the kernels support."""
        return len(lazy) > 1 and all(
            isinstance(each, Aggregated)
            and not by_numpy(each.values)
            and each.values.device == lazy[0].values.device
            and each.values.dim() == 2
            and lies_plainly(each.values)
            for each in lazy
        )

    def settle(self, ids: Sequence[Tensor], std: float, noise: GaussianNoise) -> None:
        """Give the rows that are read from each table the noise that they owe."""
        if not self._steps.steps:
            return  # no row owes noise
        begin, which, size, _ = self._numbered([each.numel() for each in ids])
        alike = len({each.shape[1:] for each in ids}) == 1  # then none is copied before it is joined
        flat = torch.cat(list(ids)).flatten() if alike else torch.cat([each.flatten() for each in ids])
        # An id beyond a table's rows would mean a row of the next table here, before the look-up refuses it.
        torch._assert_async((flat.remainder(size) == flat).all(), "a table has no row of an id that is looked up")
        rows = ascending(flat + begin)  # sorting moves ids only within each table
        starts = self.settled.index_select(0, rows)
        owes = starts < self._steps.steps
        owes[1:].logical_and_(rows[1:] != rows[:-1])
        if len(self._padding):
            owes.masked_fill_(is_among(rows, self._padding), False)
        left, owed = self._steps.since(starts) if self._steps.decays else (None, self._steps.owed(starts))
        source = noise.placed(len(self.lazy))
        lazy_noise.of_tables(self.tables, which, rows - begin, std * owed, source, mean=left, where=owes)
        self.settled.index_fill_(0, rows, self._steps.steps)

    def step(
        self, rows: Sequence[Tensor], values: Sequence[Tensor], rates: Rates, std: float, noise: GaussianNoise
    ) -> None:
        """Take one step of all tables, as `LazyTable.step` does for one."""
        begin, which, _, width = self._numbered([len(each) for each in rows])
        own = torch.cat(list(rows))
        through, starts = own + begin, width.cumsum(0) - width  # where a row's gradient begins
        refuse_unread(self.settled.index_select(0, through) == self._steps.steps)
        self.lazy[0].refuse(rates)
        if self._steps.drowns(rates):
            self._begin_anew()
        rule = sparse_update.SGD(rates.rate, rates.decay)
        self._steps.record(rates)  # first: a run that is stopped here may have too much noise, never too little
        gradient = torch.cat([each.reshape(-1) for each in values])
        source = noise.placed(len(self.lazy))
        sparse_update.step_tables(self.tables, which, own, gradient, starts, rule, std, source)
        self.settled.index_fill_(0, through, self._steps.steps)
        if self.lazy[0].full:
            self._begin_anew()

    def part(self) -> None:
        """Give each table its own copy of the history."""
        for each in self.lazy:
            each.part()

    def _begin_anew(self) -> None:
        for each in self.lazy:
            each.settle(None)
        self.settled.zero_()
        self._begin_history()

    def _begin_history(self) -> None:
        self._steps = Decayed()
        for each in self.lazy:
            each.steps = self._steps

    def _numbered(self, counts: Sequence[int]) -> tuple[Tensor, ...]:
        """Return, for each of `counts` rows of each table, four facts of its table.

        These are the table's first row, its place among the tables, and its numbers of rows and columns.
        """
        sizes, widths = zip(*(table.shape for table in self._tables.each), strict=True)
        columns = self._begins[:-1], range(len(sizes)), sizes, widths
        return spread(columns, counts, self.settled.device).unbind()
