"""DP-SGD with exponential selection: the rows with the largest gradients, drawn by the exponential mechanism."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.special import log_ndtr

from dprec.sparsity.rows.kinds import BatchRows, RowChoice


class ExponentialSelection(RowChoice):
    """Lets `keep` rows change in each step, drawn with a preference for large gradients.

    A row is worth the norm of the sum of the users' gradients there, each user's clipped to norm `max_norm` over all
    tables together. Drawing `keep` rows one after the other by the exponential mechanism is adding Gumbel noise once.

    A draw with pure ε is no worse than a Gaussian whose sensitivity is μ = -2 Φ⁻¹(1 / (1 + e^ε)) standard deviations,
    so `keep` draws cost √keep · μ, in the same units as the noise of gradients.

    Args:
        keep: rows that change in each step, over all tables.
        noise_ratio: noise multiplier that all draws of a step count as, per noise multiplier of the gradients.
        max_norm: to which a user's gradient is clipped before rows are compared. Its unit cancels out where every
            gradient is longer.
        options: those of `Strategy`.
    """

    def __init__(self, keep: int = 1_000, noise_ratio: float = 1.0, max_norm: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        for name, value in (("keep", keep), ("noise_ratio", noise_ratio), ("max_norm", max_norm)):
            if not 0 < value < float("inf"):
                self.refuse(name, value, "give a finite number above 0")
        self.keep, self.noise_ratio, self.max_norm = keep, noise_ratio, max_norm

    def epsilon_of_a_draw(self, sigma: float) -> float:
        """The pure ε of each draw that, `keep` times, counts as this noise multiplier."""
        return pure_epsilon(1 / (sigma * math.sqrt(self.keep))) if sigma else math.inf

    def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor:
        space = self.space.size if among is None else len(among)
        rows, worth = batch.summed(self.max_norm)
        if among is not None:
            rows = torch.searchsorted(among, rows)
        scale = 2 * self.max_norm * (1 + batch.rounding) / self.epsilon_of_a_draw(self.sigma)
        noisy = worth.double() - (scale * torch.log(-torch.log(self._uniforms(len(rows))))).to(worth.device)
        others, best = self._untouched(rows, space, scale)
        both = torch.cat([noisy, best])
        kept = both.topk(min(self.keep, len(both))).indices
        chosen = torch.cat([rows, others])[kept].sort()[0]
        return chosen if among is None else among[chosen]

    def phrase(self, sigma: float) -> str:
        return (
            f"exponential selection: {self.keep} rows a step, each drawn with ε = {self.epsilon_of_a_draw(sigma):.4g}"
        )

    def _untouched(self, touched: Tensor, space: int, scale: float) -> tuple[Tensor, Tensor]:
        """Return the rows nobody touched that could be drawn at all, and their Gumbel noise.

        The largest of n Gumbels are -log of the smallest of n exponentials, which have independent gaps.
        """
        count = space - len(touched)
        most = min(self.keep, count)
        gaps = -torch.log(self._uniforms(most)) / (count - torch.arange(most, dtype=torch.float64))
        best = -scale * torch.log(gaps.cumsum(0))
        place = self._distinct(most, count).to(touched.device)
        order = touched - torch.arange(len(touched), device=touched.device)
        return place + torch.searchsorted(order, place, right=True), best.to(touched.device)

    def _distinct(self, many: int, count: int) -> Tensor:
        """Return this many different numbers below `count`, in random order: all sequences are equally likely.

        Drawn on the CPU, as all uniforms are: the same wherever the tables lie.
        """
        if 2 * many >= count:
            return self.noise.uniforms(count).argsort()[:many]
        found = torch.zeros(0, dtype=torch.int64)
        while len(found) < many:
            more = (self.noise.uniforms(2 * many) * count).long().clamp_(max=count - 1)
            found = torch.cat([found, more])
            values, first = found.unique(return_inverse=True)
            earliest = torch.full_like(values, len(found)).scatter_reduce_(0, first, torch.arange(len(found)), "amin")
            found = found[earliest.sort()[0]]
        return found[:many]

    def _uniforms(self, count: int) -> Tensor:
        return 1 - self.noise.uniforms(count)  # above 0: its logarithm is finite


def pure_epsilon(mu: float) -> float:
    """Return the ε of the pure mechanism that a Gaussian of sensitivity μ standard deviations is no better than.

    >>> round(pure_epsilon(1.0), 4)
    0.807
    """
    half = torch.tensor([mu / 2, -mu / 2], dtype=torch.float64)
    above, below = log_ndtr(half).tolist()
    return above - below
