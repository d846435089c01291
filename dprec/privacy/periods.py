"""Training period by period: each batch comes from the period that pays for it, which is looked at as it begins."""

from __future__ import annotations

from typing import Any

from torch.utils.data import Subset

from dprec.errors import UserError
from dprec.privacy.gradient import trained_parameters
from dprec.privacy.release import ExactSums
from dprec.privacy.row_rules import RowRules
from dprec.privacy.sampling import Sampling


class Periods:
    """Follows a run from period to period; of data without periods it knows nothing."""

    def __init__(self, sampling: Sampling, rules: RowRules) -> None:
        self._sampling, self._rules = sampling, rules
        self._now: int | None = None  # the period of the last step that this process took

    def enter(self, step: int, loader: Any, model: Any, sums: ExactSums) -> None:
        """Check that the coming batch is drawn from this step's period; at its start, let strategies look at it."""
        period = self._sampling.period_of(step)
        if period is None:
            return
        if loader.batch_sampler.served() != step:
            raise UserError("batches do not come in the order they were drawn in, so a step may use another's period")
        if period != self._now:
            self._now = period
            records = Subset(loader.dataset, self._sampling.periods[period].numbers)
            self._rules.enter(period, model, trained_parameters(model), records, sums)
