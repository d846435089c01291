"""Batches from data in time order: one period after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from dprec.data.draws.poisson import PoissonBatches
from dprec.errors import UserError


class PeriodBatches(PoissonBatches):
    """Draws from one period for as many steps as `passes` over it take, then from the next.

    In a period of n users, each user is in each step of the period with probability `expected_batch / n`, independently
    of everything else, and in no other step. `rate` is the largest of these probabilities. One pass of the sampler goes
    through all periods; the next pass starts again.

    >>> batches = PeriodBatches([range(0, 60), range(60, 100)], expected_batch=20, passes=2, seed=1)
    >>> batches.periods, batches.rate, len(batches)
    (((range(0, 60), 6), (range(60, 100), 4)), 0.5, 10)
    >>> [min(users) >= 60 for users in batches]
    [False, False, False, False, False, False, True, True, True, True]
    """

    def __init__(
        self,
        periods: Sequence[range],
        expected_batch: int,
        passes: float = 1.0,
        seed: int | None = None,
        unit: str = "user",
    ) -> None:
        if not 0 < passes < float("inf"):
            raise UserError(f"data.period_passes is {passes}: give a number above 0")
        least = min(map(len, periods), default=0)
        if periods and least < expected_batch:
            raise UserError(
                f"data.batch_size is {expected_batch} but a period has {least} {unit}s: lower data.batch_size, "
                "or make periods longer"
            )
        super().__init__(sum(map(len, periods)), expected_batch, seed, unit)
        self.periods = tuple((part, max(1, round(passes * len(part) / expected_batch))) for part in periods)
        self._ends = [*accumulate(steps for _, steps in self.periods)]

    @property
    def rate(self) -> float:
        return self.expected_batch / min(len(part) for part, _ in self.periods)

    def __len__(self) -> int:
        return self._ends[-1]

    def steps(self, epochs: float) -> int:
        return round(epochs * len(self))

    def draw(self, step: int) -> np.ndarray:
        period, _ = self.periods[bisect_right(self._ends, step % len(self))]
        return self._subset(period, step)
