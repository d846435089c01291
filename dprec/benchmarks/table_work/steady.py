"""LazyDP in the middle of a long run. What a step costs depends on how long ago the rows it reads were last read."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dprec.data.draws.batch import ClickBatch
from dprec.sparsity import LazyDP
from dprec.sparsity.lazy.recursion import Rates
from dprec.sparsity.lazy.tables import Aggregated, LazyTable, Replayed

RATES = Rates(0.05)  # of plain SGD
NEVER = 20.0  # a row that is read with chance p in each step was read in the last 20 / p: all but one in 10^9


@dataclass(frozen=True)
class LookUps:
    """Records whose look-ups are even over all ids, or nine in ten of them over the share `hot` of the ids."""

    records: int
    tables: int
    ids: int
    pooling: int = 1
    hot: float = 1.0
    device: str = "cpu"

    def batch(self, seed: int) -> ClickBatch:
        """Return the records of one step; another seed makes others.

        >>> batch = LookUps(1000, tables=2, ids=100, hot=0.1).batch(0)
        >>> batch.categories.shape, 0.89 < float((batch.categories < 10).float().mean()) < 0.93
        (torch.Size([1000, 2, 1]), True)
        """
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randint(0, 100, (self.records, 13), generator=generator).float()
        shape = (self.records, self.tables, self.pooling)
        categories = torch.randint(0, self.ids, shape, generator=generator)
        if self.hot < 1:
            often = torch.randint(0, self._often, shape, generator=generator)
            categories = torch.where(torch.rand(shape, generator=generator) < 0.9, often, categories)
        clicked = torch.rand(self.records, generator=generator).round()
        return ClickBatch(*(each.to(self.device) for each in (numbers, categories, clicked)))

    def chances(self) -> Tensor:
        """Return the chance (1 + ids,) of each row of a table to be read in a step; row 0 is padding.

        >>> [round(chance, 6) for chance in LookUps(1, tables=1, ids=4).chances().tolist()]
        [0.0, 0.25, 0.25, 0.25, 0.25]
        """
        one = torch.full((1 + self.ids,), (0.1 if self.hot < 1 else 1.0) / self.ids, dtype=torch.float64)
        if self.hot < 1:
            one[1 : 1 + self._often] += 0.9 / self._often
        one[0] = 0.0
        return -torch.expm1(self.records * self.pooling * torch.log1p(-one))

    @property
    def _often(self) -> int:
        return max(1, round(self.hot * self.ids))


class LongRunning(LazyDP):
    """LazyDP after so many steps that no more of them change how long rows wait.

    A row that is read with chance p in each step was last read k steps ago with chance p (1 - p)^(k - 1). A run that
    starts from nothing has rows that wait for no longer than it has gone on for; and batches that come back every
    few steps let no row wait for longer than that.
    """

    def __init__(self, look_ups: LookUps, **options: Any) -> None:
        super().__init__(**options)
        self.look_ups = look_ups

    def bind(self, optimizer: Optimizer, step: int) -> None:
        super().bind(optimizer, step)
        chances = self.look_ups.chances()
        steps = math.ceil(NEVER / float(chances[1:].min()))
        past: dict[type[LazyTable], Any] = {}
        for lazy in self._tables.values():
            kind = type(lazy)
            if kind not in past:
                past[kind] = _gone_on(lazy, steps)
            lazy.steps = copy.deepcopy(past[kind])  # type: ignore[attr-defined]
            lazy.settled.copy_(steps - waits(chances, steps) + 1)


def waits(chances: Tensor, longest: int) -> Tensor:
    """Return for rows with these chances how many steps ago each was last read, drawn; at most `longest`.

    >>> waits(torch.tensor([0.0, 1.0]), 7).tolist()
    [7, 1]
    """
    uniform = torch.rand(len(chances), dtype=torch.float64).clamp_(min=torch.finfo(torch.float64).tiny)
    steps = torch.ceil(uniform.log_() / torch.log1p(-chances.double()))
    return steps.nan_to_num_(posinf=longest).clamp_(1, longest).int()


def _gone_on(lazy: LazyTable, steps: int) -> Any:
    """Return what a table knows of its steps after so many."""
    if isinstance(lazy, Replayed):
        return [RATES] * steps
    assert isinstance(lazy, Aggregated)
    for _ in range(steps):
        lazy.steps.record(RATES)
    return lazy.steps
