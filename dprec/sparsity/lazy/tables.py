"""Tables whose rows owe noise: until which step each row has its noise, and how it gets the rest."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dprec.errors import UserError
from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity.lazy.recursion import Decayed
from dprec.sparsity.rows.kinds import Rates
from dprec.sparsity.rows.tables import Table
from dprec_kernels import sparse_update
from dprec_kernels.file_tensor import zeros_beside
from dprec_kernels.lazy_noise import lazy_noise
from dprec_kernels.ordering import ascending, distinct, is_among, picked
from dprec_kernels.paths import host_readable
from dprec_kernels.row_noise import RowNoise

SETTLED_AT_ONCE = 1 << 16  # rows, when a whole table is settled
COUNTED = 1 << 20  # steps before all rows are settled and the count restarts, which bounds the history of steps


def refuse_unread(read: Tensor) -> None:
    """Refuse a step with a row that was not read in it."""
    unread = "a row got a gradient without having been read in this step"
    if not host_readable(read):
        torch._assert_async(read.all(), unread)  # ends the process, without a wait
    elif not bool(read.all()):
        raise RuntimeError(unread)


class LazyTable(ABC):
    """One table, the step up to which each of its rows has its noise, and the steps since."""

    def __init__(self, table: Table, std: float, noise: GaussianNoise) -> None:
        self.parameter, self.name = table.parameter, table.name
        self.values = table.parameter.detach()
        self.std, self.noise = std, noise
        # The first step whose noise a row owes.
        self.settled = torch.zeros(len(self.values), dtype=torch.int32, device=self.values.device)
        self.momentum: Tensor | None = None
        self.padding = table.nothing
        self._writes = 0  # of this strategy to the table, as torch counts them

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Find the module's present tensor, and count writes within the context as the strategy's own."""
        found = self.parameter.detach()
        if (found.dtype, found.device, found.shape) != (self.values.dtype, self.values.device, self.values.shape):
            raise UserError(
                f"LazyDP: table '{self.name}' was converted or moved while its rows may owe noise: take the model's "
                "state_dict() first, or convert copy.deepcopy(model)"
            )
        if found.data_ptr() != self.values.data_ptr():
            self.values = found
        before = found._version
        yield
        self._writes += found._version - before

    @property
    def written(self) -> tuple[int, int]:
        """A value that changes if other code writes to the table."""
        found = self.parameter
        return found.data_ptr(), found._version - self._writes

    def owing(self, ids: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows that owe noise, ascending and without padding, and the first step whose noise each owes."""
        if ids is None:
            for start in range(0, len(self.values), SETTLED_AT_ONCE):
                stop = min(start + SETTLED_AT_ONCE, len(self.values))
                yield from self._behind(torch.arange(start, stop, device=self.values.device))
        else:
            yield from self._behind(distinct(ids))

    def _behind(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        starts = self.settled.index_select(0, rows)
        rows, starts = picked((starts < self.now) & ~is_among(rows, self.padding), rows, starts)
        if len(rows):
            yield rows, starts.long()

    @property
    @abstractmethod
    def now(self) -> int:
        """How many steps are recorded."""

    @abstractmethod
    def settle(self, ids: Tensor | None) -> None:
        """Give these rows, or all, the noise they owe."""

    def step(self, rows: Tensor, values: Tensor, rates: Rates) -> None:
        """Take one step: these rows get the gradient and its noise; all others owe the noise."""
        refuse_unread(self.settled.index_select(0, rows) == self.now)
        self.refuse(rates)
        if self.drowns(rates):
            self._begin_anew()
        self.take(rows, values, rates)
        if self.full:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.settle(None)
        self.settled.zero_()  # first: a run that is stopped here may have too much noise, never too little
        self.restart()

    def refuse(self, rates: Rates) -> None:
        """Refuse a step at rates that this table does not support."""
        if rates.momentum and self.momentum is None:
            raise UserError("LazyDP: momentum was 0 as the run began: give it from the start, with aggregate: false")

    def drowns(self, rates: Rates) -> bool:
        """Whether the record of steps should restart before a step with these rates."""
        return False

    @property
    def full(self) -> bool:
        """Whether the record of steps should restart after this one."""
        return self.now >= COUNTED or self.worn

    @property
    def worn(self) -> bool:
        """Whether it should restart before `COUNTED` steps."""
        return False

    @abstractmethod
    def restart(self) -> None:
        """Forget all steps: every row is settled."""

    @abstractmethod
    def take(self, rows: Tensor, values: Tensor, rates: Rates) -> None:
        """Record one more step, and give these rows their gradient and its noise; then they owe nothing."""


class Aggregated(LazyTable):
    """Adds the noise of many steps at once; a step's noise is added together with its gradient.

    So a row is only rounded after noise was added, never after a gradient alone.
    """

    def __init__(self, table: Table, std: float, noise: GaussianNoise) -> None:
        super().__init__(table, std, noise)
        self.restart()

    @property
    def now(self) -> int:
        return self.steps.steps

    @property
    def worn(self) -> bool:
        return self.steps.worn

    def drowns(self, rates: Rates) -> bool:
        return self.steps.drowns(rates)

    def restart(self) -> None:
        self.steps = Decayed()

    def settle(self, ids: Tensor | None) -> None:
        if ids is not None and not host_readable(ids):
            self._settle_unasked(ids, self.steps)
            return
        for rows, starts in self.owing(ids):
            mean, noise = self.steps.since(starts)
            left = mean if self.steps.decays else None
            lazy_noise(self.values, rows, self.std * noise, self.noise.beside(self.values), mean=left)
            self.settled.index_fill_(0, rows, self.now)

    def _settle_unasked(self, ids: Tensor, steps: Decayed) -> None:
        """Settle rows without waiting for the GPU to count those that owe noise: others are masked."""
        if not self.now:
            return  # no row owes noise
        rows = ascending(ids.flatten())
        starts = self.settled.index_select(0, rows)
        owes = starts < self.now
        owes[1:].logical_and_(rows[1:] != rows[:-1])
        if len(self.padding):
            owes.masked_fill_(is_among(rows, self.padding), False)
        left, noise = steps.since(starts) if steps.decays else (None, steps.owed(starts))
        lazy_noise(self.values, rows, self.std * noise, self.noise.beside(self.values), mean=left, where=owes)
        self.settled.index_fill_(0, rows, self.now)

    def part(self) -> None:
        """Give this table its own copy of the history of steps."""
        self.steps = copy.deepcopy(self.steps)

    def refuse(self, rates: Rates) -> None:
        super().refuse(rates)
        if rates.rate * rates.decay >= 1:
            raise UserError(
                "LazyDP: learning_rate · weight_decay is 1 or more, which leaves nothing of a weight: lower one"
            )

    def take(self, rows: Tensor, values: Tensor, rates: Rates) -> None:
        self.steps.record(rates)  # first: a run that is stopped here may have too much noise, never too little
        rule = sparse_update.SGD(rates.rate, rates.decay)
        sparse_update.step_rows(self.values, rows, values, rule, self.std, self.noise.beside(self.values))
        self.settled.index_fill_(0, rows, self.now)


class Replayed(LazyTable):
    """Replays each step's noise, from a stream in which each row and step has its place: dense SGD, later."""

    def __init__(self, table: Table, std: float, noise: GaussianNoise, momentum: bool, seed: int, stream: int) -> None:
        super().__init__(table, std, noise)
        self.momentum = zeros_beside(self.values) if momentum else None
        self.seed, self.stream = seed, stream
        self.before = 0  # steps before the recorded ones
        self.steps: list[Rates] = []

    @property
    def now(self) -> int:
        return len(self.steps)

    def restart(self) -> None:
        self.before += len(self.steps)
        self.steps = []

    def settle(self, ids: Tensor | None) -> None:
        for rows, starts in self.owing(ids):
            for step in range(int(starts.min()), self.now):
                behind = rows[starts <= step]
                self._apply(behind, self._noise(behind, step), self.steps[step])
            self.settled.index_fill_(0, rows, self.now)

    def take(self, rows: Tensor, values: Tensor, rates: Rates) -> None:
        noisy = values + self._noise(rows, self.now)
        self.steps.append(rates)
        self._apply(rows, noisy, rates)
        self.settled.index_fill_(0, rows, self.now)

    def _noise(self, rows: Tensor, step: int) -> Tensor:
        drawn = self.values.new_empty(len(rows), self.values.shape[1])
        return RowNoise(self.seed, self.stream, self.before + step)(drawn, rows).mul_(self.std)

    def _apply(self, rows: Tensor, gradient: Tensor, rates: Rates) -> None:
        weight = self.values[rows]
        if rates.decay:
            gradient = gradient.add(weight, alpha=rates.decay)
        if self.momentum is not None:
            gradient = self.momentum[rows].mul_(rates.momentum).add_(gradient)
            self.momentum[rows] = gradient
        self.values[rows] = weight.add_(gradient, alpha=-rates.rate)
