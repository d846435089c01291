"""What AdaFEST gains and loses: how many rows get noise in a step, and when leaving rows out pays in convex descent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom


def expected_rows(
    counts: Sequence[float] | np.ndarray,
    size: int,
    threshold: float,
    noise_multiplier: float,
    max_contribution: float = 1.0,
) -> float:
    """Return how many rows of `size` survive AdaFEST's threshold on average, and so get noise.

    `counts` are what a batch's users add to the rows that they touch, scaled as AdaFEST scales; all other rows have 0.

    >>> round(expected_rows([30.0, 4.0], size=1_000_000, threshold=8.0, noise_multiplier=1.6), 2)
    1.29
    """
    std = noise_multiplier * max_contribution
    touched = np.asarray(counts, dtype=float)
    return float(_reached(touched, threshold, std).sum() + (size - len(touched)) * _reached(0.0, threshold, std))


def expected_rows_of_a_step(
    shares: np.ndarray,
    expected_batch: float,
    users: int,
    rows_each: int,
    threshold: float,
    noise_multiplier: float,
    max_contribution: float = 1.0,
) -> float:
    """Return the same before the batch is drawn, from the share of users who touch each row (size,).

    Every user touches `rows_each` rows in all, so one counts `max_contribution` / √rows_each, at most 1. How many of a
    row's users are drawn is binomial.
    """
    one, std = min(1.0, max_contribution / math.sqrt(rows_each)), noise_multiplier * max_contribution
    found = 0.0
    for have, rows in zip(*np.unique(np.rint(shares * users).astype(int), return_counts=True), strict=True):
        drawn = np.arange(have + 1)
        chance = binom.pmf(drawn, have, min(1.0, expected_batch / users))
        found += rows * float((chance * _reached(one * drawn, threshold, std)).sum())
    return found


def excess_loss(lipschitz: float, bias: float, variance: float, diameter: float, steps: int) -> float:
    """Lemma 3.1 of Ghazi et al. (2023): the most by which averaged projected descent ends above the least loss.

    The gradients have this bias and variance, the rate is `rate(...)`, the loss is convex.
    """
    return diameter * (math.sqrt((lipschitz + bias) ** 2 + variance) / math.sqrt(steps) + bias)


def rate(lipschitz: float, bias: float, variance: float, diameter: float, steps: int) -> float:
    """The learning rate of Lemma 3.1."""
    return diameter / math.sqrt(((lipschitz + bias) ** 2 + variance) * steps)


def sparse_wins(lipschitz: float, lost: float, kept: int, size: int, noise: float, steps: int) -> bool:
    """Equation 2: whether the bound with noise in `kept` coordinates, and a share `lost` of the gradient left out, is
    below that of DP-SGD, with noise in all `size`.

    >>> [sparse_wins(1.0, lost, kept=1_000, size=1_000_000, noise=0.1, steps=100) for lost in (0.1, 10.0)]
    [True, False]
    """
    sparse = excess_loss(lipschitz, lost * lipschitz, kept * noise**2, 1.0, steps)
    return sparse < excess_loss(lipschitz, 0.0, size * noise**2, 1.0, steps)


def _reached(counts: np.ndarray | float, threshold: float, std: float) -> np.ndarray:
    """The chance that a count reaches the threshold under noise: Ψ((τ - V) / (σ₁C₁))."""
    above = np.asarray(counts, dtype=float) - threshold
    return ndtr(above / std) if std else (above >= 0).astype(float)
