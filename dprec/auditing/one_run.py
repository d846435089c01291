"""A lower bound on ε from one training run: coins put canaries in or out, and too many right guesses refute an ε.

After Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (2023), Theorem 5.2. A fair coin decides
about each of m canaries, and r of them are guessed. If the mechanism is (ε, δ)-private, at most
Binomial(r, e^ε / (1 + e^ε)) guesses are right, except with a probability that grows with m δ. At δ = 1 / users this
probability is too large for any conclusion. So ε is bounded at a smaller δ, where the ledger has a promise too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import special

DOUBT = 0.05  # the chance that an honest run's bound is wrong
# Of the canaries that are guessed; the audit abstains on the others. Not all: coins rarely fall half in and half out.
SHARES = (1 / 50, 1 / 20, 1 / 8, 1 / 3, 4 / 5)
NEGLIGIBLE = 1e-3  # canaries times δ, at the δ where ε is bounded
TOLERANCE = 1e-3
MOST = 50.0  # no number of canaries gives a larger bound


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on ε at this δ, by the best of several ways to guess; the confidence accounts for all of them."""

    epsilon: float
    delta: float
    reach: float  # the bound if every guess were right: it cannot contradict a larger promise
    guesses: int
    right: int
    by: str
    canaries: int
    ways: int
    confidence: float


def audited_delta(delta: float, canaries: int) -> float:
    """The δ at which to bound ε: small enough for this number of canaries, and at most the promised one.

    >>> audited_delta(1e-4, canaries=1000), audited_delta(1e-9, canaries=1000)
    (1e-06, 1e-09)
    """
    return min(delta, NEGLIGIBLE / max(1, canaries))


def chance(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of this many right guesses if the mechanism is (ε, δ)-private.

    >>> round(chance(10, 10, 10, epsilon=0.0, delta=0.0) * 2**10, 9)
    1.0
    """
    if right == 0:
        return 1.0
    reached = np.arange(right, 0, -1)  # right - i for i = 0 ... right - 1
    least = special.betainc(reached, guesses - reached + 1, special.expit(epsilon))  # P[W >= right - i]
    if delta == 0:
        return min(1.0, float(least[0]))
    nearly = (np.append(least[1:], 1.0) - least[0]) / np.arange(1, right + 1)  # P[right > W >= right - i] / i
    return min(1.0, float(least[0] + 2 * canaries * delta * nearly.max()))


def at_least(canaries: int, guesses: int, right: int, delta: float, doubt: float) -> float:
    """The largest ε that this many right guesses refute, wrongly with probability at most `doubt`; 0 if none.

    >>> round(at_least(canaries=1000, guesses=100, right=100, delta=0.0, doubt=0.05), 2)
    3.49
    """

    def refuted(epsilon: float) -> bool:
        return chance(canaries, guesses, right, epsilon, delta) <= doubt

    if 2 * right <= guesses or not refuted(0.0):
        return 0.0
    low, high = 0.0, MOST
    while high - low > TOLERANCE:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def lower_bound(
    scores: Mapping[str, np.ndarray], planted: np.ndarray, delta: float, doubt: float = DOUBT
) -> LowerBound:
    """Guess by each score, where a higher one means "planted", and bound ε by the best way to guess.

    A way to guess is a score, the share of the canaries to guess about, and whether to guess only that the highest are
    in, or also that as many of the lowest are out. The ways are fixed in advance, and the doubt is divided among them.
    """
    many = len(planted)
    ways = [(name, share, both) for name in scores for share in SHARES for both in (False, True)]
    each = doubt / len(ways)
    found = []
    for name, share, both in ways:
        guesses = max(1, round(share * many))
        order = np.argsort(-scores[name], kind="stable")
        inside = order[: (guesses + 1) // 2 if both else guesses]
        outside = order[len(order) - guesses // 2 :] if both else order[:0]
        right = int(planted[inside].sum() + (~planted[outside]).sum())
        epsilon = at_least(many, guesses, right, delta, each)
        how = f"{name}, {'in or out' if both else 'in'}"
        found.append((epsilon, guesses, right, how))
    epsilon, guesses, right, how = max(found)
    most = max(1, round(max(SHARES) * many))
    reach = at_least(many, most, most, delta, each)
    return LowerBound(epsilon, delta, reach, guesses, right, how, many, len(ways), 1 - doubt)
