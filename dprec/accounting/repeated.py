"""The privacy cost of choosing the best of a random number of private runs, by a private score.

Liu and Talwar (2019); Papernot and Steinke (2022), whose theorem 2 is used with η = 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from dp_accounting.rdp import compute_epsilon
from scipy.optimize import brentq

from dprec.accounting.budget import PrivacyBudget, calibrate, meet
from dprec.accounting.ledger import Event, Ledger
from dprec.accounting.plan import Plan
from dprec.errors import UserError

MOST = 1000.0  # runs on average
SCORE_SHARE = 0.05  # of a run's precision (1/σ²), for its score
CLOSE = 1e-3  # how much of the budget may stay unspent
LEAST = 1e-3  # of ε, for one run


@dataclass(frozen=True)
class Repeated:
    """A private run that is repeated; only the best one is published.

    The number of runs has a logarithmic distribution: k runs with probability (1 - γ)^k / (k log(1/γ)), at least one,
    `mean` on average. That number does not depend on data and is not published.

    >>> five = Repeated(5)
    >>> [round(five.chance(runs), 3) for runs in (1, 2, 10)]
    [0.35, 0.163, 0.018]
    >>> five.draw(0.3), five.draw(0.9)
    (1, 12)
    """

    mean: float

    def __post_init__(self) -> None:
        if not 1 < self.mean <= MOST:
            raise UserError(f"--runs is {self.mean:g}: give more than 1 run on average, and at most {MOST:g}")

    @property
    def gamma(self) -> float:
        # As log(1/γ) = t, the mean is (e^t - 1) / t.
        return math.exp(-brentq(lambda t: math.expm1(t) / t - self.mean, 1e-9, 20.0, xtol=1e-15))

    def chance(self, runs: int) -> float:
        """Return the probability of this number of runs."""
        gamma = self.gamma
        return math.exp(runs * math.log1p(-gamma)) / (runs * -math.log(gamma))

    def draw(self, uniform: float) -> int:
        """Return the number of runs for a number drawn uniformly from 0 to 1."""
        gamma, runs, below = self.gamma, 1, 0.0
        term = (1 - gamma) / -math.log(gamma)
        while True:
            below += term / runs
            if uniform < below or term < 1e-18:
                return runs
            term, runs = term * (1 - gamma), runs + 1

    def epsilon(self, orders: Sequence[int], divergences: np.ndarray, delta: float) -> float:
        """Return ε of the choice and its result, from the Rényi divergences of one run, its score included.

        >>> sigma, orders = 1.25, np.arange(2, 64)
        >>> round(Repeated(5).epsilon(orders, orders / (2 * sigma**2), 1 / 6040), 2)
        4.97
        """
        order = np.asarray(orders, dtype=np.float64)
        shown = divergences + math.log(self.mean) / (order - 1)
        hidden = (1 - 1 / order) * divergences - math.log(self.gamma) / order  # at any order; the best one counts
        return float(compute_epsilon(orders, shown + float(np.min(hidden)), delta)[0])


@dataclass(frozen=True)
class Price:
    """What each run may spend, so that the choice and the chosen run stay within the budget."""

    budget: PrivacyBudget
    epsilon: float  # of the choice and the chosen run together
    epsilon_of_run: float
    score_noise: float  # standard deviations of the noise in a score, in units of what one user adds

    @classmethod
    def of(cls, budget: PrivacyBudget, repeated: Repeated, plans: Sequence[tuple[Plan, int]]) -> Price:
        """Make the price for `plans`: those of all candidates, with their steps; all must draw users in one way."""
        if len({plan.sampling.kind for plan, _ in plans}) > 1:
            raise ValueError("the plans of one choice draw users by different laws")

        @cache
        def at(inverse: float) -> Price:  # of ε of one run
            epsilon = 1 / inverse
            alone = calibrate(PrivacyBudget(epsilon, budget.delta), lambda sigma: Event("gaussian", sigma), steps=1)
            noise = alone / math.sqrt(SCORE_SHARE)
            scored = [
                _alone(plan, steps, epsilon).after(Event("gaussian", noise, what="score"), 1).divergences()
                for plan, steps in plans
            ]
            orders = scored[0][0]
            worst = np.max([values for _, values in scored], axis=0)
            return cls(budget, repeated.epsilon(orders, worst, budget.delta), epsilon, noise)

        if at(1 / (LEAST * budget.epsilon)).epsilon > budget.epsilon:
            raise UserError(
                f"privacy.epsilon {budget.epsilon:g} does not pay for a choice among {repeated.mean:g} runs on "
                "average: raise it, or lower --runs"
            )
        return at(meet(lambda inverse: at(inverse).epsilon, budget.epsilon, guess=2 / budget.epsilon, slack=CLOSE))


def _alone(plan: Plan, steps: int, epsilon: float) -> Ledger:
    """The ledger of one run with this budget."""
    own = Plan.of(plan.sampling, steps, epsilon, plan.delta, releases=tuple(plan.releases), before=plan.before)
    return own.ledger_after(steps)
