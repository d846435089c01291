"""Training period by period: what is looked at as a period begins."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset

from dprec.accounting.release import ExactSums
from dprec.accounting.sampling import Sampling
from dprec.gradients.parameters import trained_parameters
from dprec.sparsity.rows.row_rules import RowRules


class Periods:
    """Follows a run from period to period; of data without periods it knows nothing."""

    def __init__(self, sampling: Sampling, rules: RowRules) -> None:
        self._sampling, self._rules = sampling, rules
        self._now: int | None = None  # the period of the last step that this process took

    def enter(self, step: int, dataset: Any, model: Any, sums: ExactSums) -> None:
        """At the start of a period, whose batch comes next, let strategies look at it."""
        period = self._sampling.period_of(step)
        if period is None:
            return
        if period != self._now:
            self._now = period
            records = Subset(dataset, self._sampling.periods[period].numbers)
            self._rules.enter(period, model, trained_parameters(model), records, sums)
