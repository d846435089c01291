"""Training period by period: what is looked at as a period begins."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from dprec.accounting.release import ExactSums
from dprec.accounting.sampling import Sampling
from dprec.checks.state import Unchanged
from dprec.contract import Losses, Users
from dprec.gradients.parameters import trained_parameters
from dprec.sparsity.rows.table_strategies import TableStrategies


class Periods:
    """Follows a run from period to period; does nothing for data without periods."""

    def __init__(self, sampling: Sampling, strategies: TableStrategies) -> None:
        self._sampling, self._strategies = sampling, strategies
        self._now: int | None = None  # the period of the last step that this process took

    def enter(
        self,
        step: int,
        everybody: Users,
        module: nn.Module,
        losses: Losses,
        sums: ExactSums,
        owing: Collection[int] = (),
    ) -> None:
        """At the start of a period, whose batch comes next, let strategies look at it.

        `owing` are the ids of tables whose rows owe noise and get it when read.
        """
        period = self._sampling.period_of(step)
        if period is None:
            return
        if period != self._now:
            self._now = period
            own = UsersOfAPeriod(everybody, self._sampling.periods[period].numbers)
            periods = len(self._sampling.periods)
            before = Unchanged(module, owing)
            self._strategies.learn(period, losses, trained_parameters(module), own, sums, periods)
            before.refuse()


class UsersOfAPeriod:
    """Those of all users who have these numbers, numbered from 0."""

    def __init__(self, everybody: Users, numbers: range) -> None:
        self._everybody, self._numbers = everybody, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, users: Sequence[int]) -> list[Any]:
        return self._everybody.of([self._numbers[user] for user in users])
