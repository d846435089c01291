"""What a model trains through in a private run: it stands where the plain descent stood, by one assignment."""

from __future__ import annotations

from dataclasses import dataclass

from dprec.accounting.release import NoisySums
from dprec.privacy.step import PrivateGradient


@dataclass(frozen=True)
class PrivateDescent:
    """The private step, the sums with noise, and how long the budget lasts."""

    gradient: PrivateGradient
    sums: NoisySums
    noise: float  # standard deviation in each entry of a step's gradient
    last: int  # the step after which the budget is spent, of the run's

    def steps(self, planned: int) -> int:
        return min(planned, self.last)
