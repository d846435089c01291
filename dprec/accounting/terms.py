"""What a run provides to its model: sums over all data, the noise of a step, the number of steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dprec.accounting.release import ExactSums

if TYPE_CHECKING:
    import pytorch_lightning as pl


@dataclass(frozen=True)
class Terms:
    """What a run provides; the defaults are those of training without privacy."""

    sums: ExactSums = field(default_factory=ExactSums)
    noise_std: float = 0.0  # nominal standard deviation of the noise in each entry of a step's gradient
    last: int | None = None  # the run's step after which the budget is spent

    def steps(self, planned: int) -> int:
        """Return the step after which training ends."""
        return planned if self.last is None else min(planned, self.last)


def terms_of(trainer: pl.Trainer | None) -> Terms:
    """Return the terms of a trainer's private run; without one, or without a trainer, those of plain training."""
    asked = (getattr(callback, "terms", None) for callback in getattr(trainer, "callbacks", ()))
    return next((terms for terms in asked if isinstance(terms, Terms)), Terms())
