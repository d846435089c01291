"""A budget of (ε, δ), the noise that keeps it, and the number of steps that it allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dprec.accounting.composition import COARSE_GRID
from dprec.accounting.ledger import Event, Ledger
from dprec.errors import UserError

LEAST_NOISE, MOST_NOISE = 1e-2, 1e5  # smaller noise multipliers protect no one; with larger ones a model cannot learn


@dataclass(frozen=True)
class PrivacyBudget:
    """The most that a run may spend per user, or per record."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise UserError(f"privacy.epsilon is {self.epsilon}: give a finite number above 0, usually 1 to 10")
        if not 0 < self.delta < 1:
            raise UserError(f"privacy.delta is {self.delta}: give a number between 0 and 1, 1/users is usual")

    def allows(self, ledger: Ledger) -> bool:
        """Whether the reported ε of the ledger is within the budget."""
        return ledger.epsilon(self.delta) <= self.epsilon


def calibrate(
    budget: PrivacyBudget, event_of: Callable[[float], Event], steps: int, already: Ledger | None = None
) -> float:
    """Return the smallest noise multiplier σ with which `steps` uses of `event_of(σ)` after `already` fit the budget.

    The result always fits by the ε that `Ledger.epsilon` reports. At most 2e-4 of the budget stays unspent, unless ε
    jumps there (extreme rates) or σ is about 0.01, the least tried. Raises UserError if no σ up to 1e5 fits.

    >>> budget = PrivacyBudget(epsilon=8, delta=1 / 6040)
    >>> round(calibrate(budget, lambda sigma: Event("poisson_gaussian", sigma, 1024 / 6040), steps=590), 2)
    2.31
    """
    already = already or Ledger()
    return least_noise(budget, lambda sigma: already.after(event_of(sigma), steps), steps, already)


def least_noise(budget: PrivacyBudget, spent: Callable[[float], Ledger], steps: int, already: Ledger) -> float:
    """Return the smallest noise multiplier σ with which the ledger `spent(σ)`, `steps` steps after `already`, fits."""
    if not budget.allows(already):
        passed = already.epsilon(budget.delta)
        raise UserError(f"epsilon={budget.epsilon:g} is already exceeded by other releases ({passed:.3g}): raise it")
    if not budget.allows(spent(MOST_NOISE)):
        raise UserError(
            f"epsilon={budget.epsilon:g} is out of reach of {steps} steps even with a noise multiplier of "
            f"{MOST_NOISE:g}: raise epsilon or delta, or train fewer steps"
        )
    # Each bound is slower and tighter than the previous one; earlier ones only give the first guess.
    sigma = meet(lambda s: spent(s).renyi_epsilon(budget.delta), budget.epsilon, guess=1.0, slack=0.02)
    sigma = meet(lambda s: spent(s).epsilon(budget.delta, COARSE_GRID), budget.epsilon, 0.93 * sigma, slack=1e-4)
    return meet(lambda s: spent(s).epsilon(budget.delta), budget.epsilon, sigma, slack=2e-4)


def most_steps(budget: PrivacyBudget, spent: Callable[[int], Ledger], at_most: int) -> int:
    """Return the most steps, up to `at_most`, after which the ledger `spent(steps)` fits; 0 if it never does."""
    if at_most <= 0 or not budget.allows(spent(0)):
        return 0
    if budget.allows(spent(at_most)):
        return at_most
    count = longest(lambda n: spent(n).renyi_epsilon(budget.delta) <= budget.epsilon, at_most)
    count = longest(lambda n: spent(n).epsilon(budget.delta, COARSE_GRID) <= budget.epsilon, at_most, count)
    return longest(lambda n: budget.allows(spent(n)), at_most, count)


def meet(epsilon: Callable[[float], float], target: float, guess: float, slack: float) -> float:
    """Return a noise multiplier whose ε is at most the target and, unless ε jumps, at least (1 - slack) target.

    It also works for the inverse of any other parameter that ε grows with.

    It takes secant steps in log-log, where ε is almost linear, inside a bracket whose upper end always fits.
    """
    low, high, sigma = LEAST_NOISE, MOST_NOISE, guess
    slope, last = -1.3, None
    for attempt in range(60):
        spent = epsilon(sigma)
        if target * (1 - slack) <= spent <= target:
            return sigma
        low, high = (sigma, high) if spent > target else (low, sigma)
        if high <= low * (1 + 1e-4):  # ε jumps here: another grid
            break
        x, y = math.log(sigma), math.log(min(max(spent, 1e-9), 1e9) / (target * (1 - slack / 2)))
        if last is not None and x != last[0]:
            slope = min((y - last[1]) / (x - last[0]), -0.1)
        last = x, y
        sigma = math.exp(min(max(x - y / slope, -50.0), 50.0))
        if not low < sigma < high or attempt % 4 == 3:
            sigma = math.sqrt(low * high)
    return high


def longest(fits: Callable[[int], bool], limit: int, guess: int = 0) -> int:
    """Return the largest count up to `limit` that fits: strides from the guess, then halving.

    If a count fits, all smaller ones must fit, and 0 always fits.

    >>> [longest(lambda count: count * count <= 2000, 1000, guess) for guess in (0, 40, 50, 1000)]
    [44, 44, 44, 44]
    """
    low, high, stride, probe = 0, limit + 1, 1, min(max(guess, 1), limit)
    while high - low > 1:
        low, high, probe = (probe, high, probe + stride) if fits(probe) else (low, probe, probe - stride)
        stride *= 2
        if not low < probe < high or (low and high <= limit):
            probe = (low + high) // 2
    return low
