"""Strategies that choose rows in every step: AdaFEST, by noisy counts of users, and the exponential mechanism."""

from __future__ import annotations

import math
from typing import Any

import scipy  # loads its parts on demand
import torch
from torch import Tensor
from torch.special import log_ndtr

from dprec.sparsity.rows.kinds import BatchRows, RowChoice
from dprec_kernels.contribution_map import contribution_map


class AdaFEST(RowChoice):
    """Lets a row change if its noisy count of users in the batch reaches a threshold.

    Use it for large tables of which each step reads few rows, and whose important rows change over time. Each user's
    rows count 1, scaled down to norm `max_contribution` over all tables together. Every row's count gets noise, so rows
    that no user read may be chosen; they get noise alone. Rows that are not chosen keep their values, and are left out
    of a user's gradient before clipping.

    After other strategies, it chooses among the rows that they left: after `FEST`, this is AdaFEST+.

    Args:
        threshold: the least noisy count. With 26 rows a user and `max_contribution` 1, one user counts 0.196.
        noise_ratio: noise multiplier of the counts per noise multiplier of the gradients.
        max_contribution: the most one user may add to the counts, in L2 norm.
        options: those of `Strategy`.

    >>> from dprec import Privacy
    >>> from dprec.sparsity import FEST, AdaFEST
    >>> privacy = Privacy(epsilon=3, sparsity=AdaFEST(threshold=2.0, tables="embedding.*"))
    >>> plus = Privacy(epsilon=3, sparsity=[FEST(keep=1000), AdaFEST(threshold=2.0)])  # AdaFEST+
    """

    def __init__(
        self, threshold: float = 5.0, noise_ratio: float = 2.0, max_contribution: float = 1.0, **options: Any
    ) -> None:
        super().__init__(**options)
        for name, value in (("noise_ratio", noise_ratio), ("max_contribution", max_contribution)):
            if not 0 < value < float("inf"):
                self.refuse(name, value, "give a finite number above 0")
        if not -float("inf") < threshold < float("inf"):
            self.refuse("threshold", threshold, "give a finite number")
        self.threshold, self.noise_ratio, self.max_contribution = threshold, noise_ratio, max_contribution

    def share_by_noise(self, sigma: float) -> float:
        """Return the probability that a row which no user of the batch reads gets noise all the same.

        The counts' noise multiplier is `sigma`. In a large table, these rows are most of what a step writes.

        >>> round(AdaFEST(threshold=5.0).share_by_noise(2.0), 4)
        0.0062
        """
        return float(scipy.special.ndtr(-self.threshold / (sigma * self.max_contribution))) if sigma else 0.0

    def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor:
        batch = batch.on_host()
        return contribution_map(
            batch.row,
            batch.user,
            self.space.size,
            clip=self.max_contribution,
            noise_multiplier=self.sigma,
            threshold=self.threshold,
            uniforms=self.noise.uniforms,
            domain=None if among is None else among.to(batch.row.device),
        )

    def phrase(self, sigma: float) -> str:
        return f"AdaFEST: rows chosen in each step from counts with noise multiplier {sigma:.6g}"


class ExponentialSelection(RowChoice):
    """Lets `keep` rows change in each step, drawn with a preference for large gradients.

    It is a baseline for `AdaFEST`. A row's score is the norm of the sum of the users' gradients there, after each user
    is clipped to norm `max_norm` over all tables together. Adding Gumbel noise to the scores once is equivalent to
    drawing `keep` rows one after the other by the exponential mechanism.

    A draw with pure ε costs no more than a Gaussian whose sensitivity is μ = -2 Φ⁻¹(1 / (1 + e^ε)) standard deviations.
    So `keep` draws cost √keep · μ, in the same units as the noise of gradients.

    Args:
        keep: rows that change in each step, over all tables.
        noise_ratio: noise multiplier that all draws of a step count as, per noise multiplier of the gradients.
        max_norm: norm to which a user's gradient is clipped before rows are compared. Its value does not matter if
            every gradient is longer.
        options: those of `Strategy`.

    >>> from dprec.sparsity import ExponentialSelection
    >>> round(ExponentialSelection(keep=100).epsilon_of_a_draw(sigma=1.0), 4)
    0.0798
    """

    def __init__(self, keep: int = 1_000, noise_ratio: float = 1.0, max_norm: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        for name, value in (("keep", keep), ("noise_ratio", noise_ratio), ("max_norm", max_norm)):
            if not 0 < value < float("inf"):
                self.refuse(name, value, "give a finite number above 0")
        self.keep, self.noise_ratio, self.max_norm = keep, noise_ratio, max_norm

    def epsilon_of_a_draw(self, sigma: float) -> float:
        """The pure ε of each of `keep` draws that together count as this noise multiplier."""
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
        """Return the rows that no user touched and that could be drawn, and their Gumbel noise.

        The largest of n Gumbel variables are -log of the smallest of n exponentials, whose gaps are independent.
        """
        count = space - len(touched)
        most = min(self.keep, count)
        gaps = -torch.log(self._uniforms(most)) / (count - torch.arange(most, dtype=torch.float64))
        best = -scale * torch.log(gaps.cumsum(0))
        place = self._distinct(most, count).to(touched.device)
        order = touched - torch.arange(len(touched), device=touched.device)
        return place + torch.searchsorted(order, place, right=True), best.to(touched.device)

    def _distinct(self, many: int, count: int) -> Tensor:
        """Return `many` different numbers below `count`, in random order: all sequences are equally likely.

        They are drawn on the CPU, as all uniforms are, so that they do not depend on the tables' device.
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
    """Return the ε of a pure mechanism that costs no more than a Gaussian of sensitivity μ standard deviations.

    >>> round(pure_epsilon(1.0), 4)
    0.807
    """
    half = torch.tensor([mu / 2, -mu / 2], dtype=torch.float64)
    above, below = log_ndtr(half).tolist()
    return above - below


def most_removed(numbers: int, chosen: float, steps: int, dense: float, own: float) -> float:
    """Return the largest share of a gradient that AdaFEST may remove and still have a better bound than DP-SGD.

    Equation 2 of the paper compares the removed gradient with the noise that is saved, for a convex loss with gradients
    of norm up to 1. Return 0 if DP-SGD is better even when nothing is removed.

    Args:
        numbers: how many numbers the model has.
        chosen: how many numbers get noise in a step.
        steps: steps of the run.
        dense: standard deviation of DP-SGD's noise in a mean gradient.
        own: standard deviation of AdaFEST's noise in a mean gradient.

    >>> round(most_removed(1_000_000, 1_000, steps=400, dense=0.01, own=0.012), 3)
    0.429
    """
    root, bound = math.sqrt(steps), math.sqrt(1 + numbers * dense**2)

    def excess(share: float) -> float:
        return math.sqrt((1 + share) ** 2 + chosen * own**2) + share * root - bound

    if excess(0.0) >= 0:
        return 0.0
    return 1.0 if excess(1.0) < 0 else float(scipy.optimize.brentq(excess, 0.0, 1.0))
