"""The noise of a step, and the number of users that it covers."""

from __future__ import annotations

from dataclasses import dataclass

from dprec.noise.gaussian import GaussianNoise, most_users, rounding


@dataclass(frozen=True)
class StepNoise:
    """The noise of everything that a step releases, choices of rows included.

    >>> round(StepNoise(GaussianNoise(), multiplier=2.0, expected_batch=100.0).std(0.5), 3)
    1.001
    """

    source: GaussianNoise
    multiplier: float  # σ, relative to the most that one user may move
    expected_batch: float  # users; sums are divided by it

    @property
    def most(self) -> int:
        """How many users a step may have; the noise also covers the rounding of a sum over them."""
        return most_users(self.expected_batch)

    @property
    def rounding(self) -> float:
        """How much more than its bound one user may move a sum of a step, relative to that bound."""
        return rounding(self.most)

    def std(self, bound: float, factor: float = 1.0) -> float:
        """Return the noise's standard deviation for a sum that one user moves by at most `bound`."""
        return self.nominal_std(bound, factor) * (1 + self.rounding)

    def nominal_std(self, bound: float, factor: float = 1.0) -> float:
        """Return `std` without the margin for rounding: for estimates of the noise's effect, never for noise."""
        return self.multiplier * factor * bound
