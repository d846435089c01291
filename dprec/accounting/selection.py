"""Draws the places that most users name, with Gumbel noise: the exponential mechanism, one place after the other.

Adding Gumbel noise of scale 1/ε once and taking the `each` largest is equivalent to drawing one place after the other
without replacement, with probabilities proportional to e^(ε count) (Durfee and Rogers 2019). One person more or less
changes every count by 0 or by 1 in the same direction, so the log ratio of a draw's probabilities is in an interval of
length ε. Such a draw is a post-processing of randomised response with losses t and t - ε for some t in (0, ε). Of these
the one with t = ε/2 is the least private as a Gaussian. No draw costs more than a Gaussian whose sensitivity is
μ = -2 Φ⁻¹(1 / (1 + e^(ε/2))) standard deviations, and n draws cost no more than one of √n μ.

In pure privacy n draws cost n ε, and not ε.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy  # loads its parts on demand


def multiplier_of(epsilon: float, draws: int) -> float:
    """Return the noise multiplier of a Gaussian that costs at least as much as these draws.

    >>> round(multiplier_of(0.01, 1), 1), round(multiplier_of(0.01, 10_000), 3)
    (159.6, 1.596)
    """
    mu = -2 * float(scipy.special.ndtri(1 / (1 + math.exp(min(epsilon / 2, 700.0)))))
    return math.inf if draws == 0 or mu == 0 else 1 / (mu * math.sqrt(draws))


def epsilon_of(multiplier: float, draws: int) -> float:
    """Return the ε of each draw with which all draws cost no more than a Gaussian of this noise multiplier.

    >>> round(epsilon_of(multiplier_of(0.3, 50), 50), 12)
    0.3
    """
    if multiplier == 0 or draws == 0:
        return math.inf
    half = 1 / (2 * multiplier * math.sqrt(draws))  # of μ
    return 2 * float(scipy.special.log_ndtr(half) - scipy.special.log_ndtr(-half))


def drawn(
    counts: np.ndarray,
    parts: Sequence[np.ndarray],
    each: Sequence[int],
    epsilon: float,
    uniforms: Callable[[int], np.ndarray],
) -> np.ndarray:
    """Return the drawn places, ascending: `each` says how many of each part, which lists places.

    With ε = ∞ they are those of the largest counts. `uniforms(n)` draws n numbers in [0, 1).

    >>> drawn(np.array([5, 9, 7, 1]), [np.array([0, 1]), np.array([2, 3])], [1, 1], math.inf, np.zeros)
    array([1, 2])
    """
    chosen = [np.zeros(0, dtype=np.int64)]
    for places, many in zip(parts, each, strict=True):
        worth = counts[places].astype(np.float64)
        if epsilon < math.inf:
            with np.errstate(divide="ignore"):
                worth -= np.log(-np.log1p(-uniforms(len(places)))) / epsilon
        if many:
            chosen.append(places[np.argpartition(-worth, many - 1)[:many]])
    return np.sort(np.concatenate(chosen))


def draws_of(parts: Sequence[np.ndarray], keep: int) -> list[int]:
    """Return how many places of each part are drawn: `keep` in total, equally many of each part if it has so many."""
    each = max(1, keep // len(parts))
    return [min(each, len(places)) for places in parts]
