"""When to stop: batches of random sizes cost random parts of the budget, so the number of steps is random too.

Levels are drawn independently of the data, and for any levels the allowed steps keep the budget. So the number of steps
may be fixed, and published, before the first step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from dprec.accounting.composition import COARSE_GRID
from dprec.accounting.ledger import Event, Ledger
from dprec.convex.debiasing import TruncatedGeometric, estimate_events
from dprec.convex.release.regimes import gaussian_multiplier


def ledger_of(levels: Sequence[int], records: int, multiplier: float) -> Ledger:
    """Return the joint cost of estimates of these levels."""
    ledger = Ledger()
    for level, count in Counter(int(level) for level in levels).items():
        for event in estimate_events(level, records, multiplier):
            ledger.record(event, count)
    return ledger


def steps_within_ledger(levels: Sequence[int], records: int, multiplier: float, epsilon: float, delta: float) -> int:
    """Return the most first steps whose ledger stays within (ε, δ), by exact composition."""

    def fits(steps: int) -> bool:
        ledger = ledger_of(levels[:steps], records, multiplier)
        return ledger.epsilon(delta, COARSE_GRID) <= epsilon

    # Many small losses add up to about a Gaussian's, which gives the first guess.
    rates = 2.0 ** (np.asarray(levels) + 1) / records
    squares = np.cumsum(rates**2) * math.expm1(min(2 / multiplier**2, 60.0))
    guess = int(np.searchsorted(squares, gaussian_multiplier(epsilon, delta) ** -2))
    steps = longest_prefix(len(levels), fits, guess)
    while steps and ledger_of(levels[:steps], records, multiplier).epsilon(delta) > epsilon:
        steps -= 1  # the reported ε uses a finer grid
    return steps


def call_epsilon(steps: int, records: int, epsilon: float, delta: float, call_delta: float) -> float:
    """Return ε of one call such that about `steps` steps spend (ε, δ), as if their losses were Gaussian.

    >>> round(call_epsilon(100, records=10_000, epsilon=1.0, delta=1e-6, call_delta=1e-7), 1)
    4.5
    """
    law = TruncatedGeometric.of(records)
    square = math.fsum(law.chance(k) * (2 ** (k + 1) / records) ** 2 for k in range(law.most + 1))
    budget = gaussian_multiplier(epsilon, delta) ** -2
    multiplier = math.sqrt(2 / math.log1p(budget / (steps * square)))
    return Ledger({Event("gaussian", multiplier): 1}).epsilon(call_delta)


def steps_within_filter(
    levels: Sequence[int], records: int, epsilon: float, delta: float, step_epsilon: float | None = None
) -> int:
    """Return the most first steps by the paper's rule, T in its equation 5, which is simple and stops early.

    A step of level N with (ε', δ') for its four calls together is (a ε', a δ')-private, where
    a = (3 · 2^(N+1) + 1) / 2n and, by default, ε' = ε / 8 and δ' = δ / 4. Adaptive composition over half of the
    budget gives the number of steps.

    >>> steps_within_filter([0] * 1000, records=64, epsilon=1.0, delta=1e-4)
    36
    """
    shares = (3 * 2.0 ** (np.asarray(levels) + 1) + 1) / (2 * records)
    epsilons = shares * (epsilon / 8 if step_epsilon is None else step_epsilon)
    squares = np.cumsum(epsilons**2)
    spent = np.sqrt(2 * math.log(4 / delta) * squares) + squares / 2
    failed = np.cumsum(shares) * delta / 8
    over = (spent > epsilon / 2) | (failed > delta / 4)
    return int(np.argmax(over)) if over.any() else len(shares)


def longest_prefix(length: int, fits: Callable[[int], bool], guess: int = 0) -> int:
    """Return the largest count up to `length` that fits; if a count fits, all smaller ones do, and 0 always fits.

    >>> [longest_prefix(1000, lambda count: count * count <= 2000, guess) for guess in (0, 40, 50, 1000)]
    [44, 44, 44, 44]
    """
    low, high = 0, length + 1
    stride, probe = max(1, guess // 20), min(max(guess, 1), length)
    while high - low > 1:
        if fits(probe):
            low, probe = probe, min(probe + stride, length)
        else:
            high, probe = probe, max(probe - stride, 1)
        stride *= 2
        if not low < probe < high or (low and high <= length):
            probe = (low + high) // 2
    return low
