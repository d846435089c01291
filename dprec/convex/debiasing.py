"""A gradient estimate that has the bias of the largest batch, mostly at the cost of small ones.

A private mean of a small batch has more bias than that of a large one. The estimate draws a size at random, takes the
difference between a batch of this size and its halves, and divides it by the probability of the size. In expectation
the differences add up to the estimate from the largest batch.

Batches of random sizes cost random parts of the budget, so the number of steps is random too.

Levels are drawn independently of the data, and for any levels the allowed steps keep the budget. So the number of steps
may be fixed, and published, before the first step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dprec.accounting.budget import longest
from dprec.accounting.composition import COARSE_GRID
from dprec.accounting.ledger import Event, Ledger
from dprec.convex.estimator import Loss, gradient, risk
from dprec.convex.mean import gaussian_multiplier
from dprec.convex.mechanisms import VectorNoise
from dprec.errors import UserError


@dataclass(frozen=True)
class TruncatedGeometric:
    """The distribution of the level N in 0..most: p_k ∝ 2^-k.

    Σ_k 2^-k over 0..M is 2 (1 - 2^-(M+1)), so p_k = 2^-k / (2 (1 - 2^-(M+1))).

    >>> law = TruncatedGeometric(2)
    >>> [law.chance(k) * 7 for k in range(3)], TruncatedGeometric.of(1000).most
    ([4.0, 2.0, 1.0], 8)
    """

    most: int

    @classmethod
    def of(cls, records: int) -> TruncatedGeometric:
        """Return the distribution for n `records`: a batch of level M = ⌊log₂ n⌋ - 1 has 2^(M+1) ≤ n of them."""
        if records < 2:
            raise UserError(f"there are {records} records: a batch and its halves need at least 2")
        return cls(records.bit_length() - 2)

    def chance(self, level: int) -> float:
        return 2.0**-level / (2 * (1 - 2.0 ** -(self.most + 1)))

    def draw(self, rng: np.random.Generator, size: int) -> np.ndarray:
        chances = [self.chance(level) for level in range(self.most + 1)]
        return rng.choice(self.most + 1, size=size, p=np.divide(chances, math.fsum(chances)))


@dataclass(frozen=True)
class Draw:
    """The records of one estimate: two halves of a batch of 2^(level+1) records, and one more record."""

    level: int
    odd: np.ndarray  # (2^level,) record numbers
    even: np.ndarray  # (2^level,)
    single: np.ndarray  # (1,)

    @classmethod
    def of(cls, level: int, records: int, rng: np.random.Generator) -> Draw:
        batch = rng.choice(records, 2 ** (level + 1), replace=False)  # in random order
        return cls(level, batch[::2], batch[1::2], rng.integers(records, size=1))


def debiased(draw: Draw, law: TruncatedGeometric, estimate: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return G = (E(B) - (E(O) + E(E)) / 2) / p_N + E(i), four calls of a mean estimator E on record numbers.

    Its expectation over draws is that of E on a uniform batch of 2^(M+1) records.
    """
    batch = np.concatenate([draw.odd, draw.even])
    difference = estimate(batch)
    difference -= (estimate(draw.odd) + estimate(draw.even)) / 2
    difference /= law.chance(draw.level)
    difference += estimate(draw.single)
    return difference


def estimate_events(level: int, records: int, multiplier: float) -> tuple[Event, Event]:
    """Return the events of the four calls, each with Gaussian noise of `multiplier` times its sensitivity.

    A record of the batch is in one of the halves, never in both, and moves two of the three answers: together this is
    a Gaussian of multiplier / √2. The single record is drawn independently of the batch.
    """
    batch = Event(
        "subset_gaussian", multiplier / math.sqrt(2), 2 ** (level + 1) / records, "gradients of a batch and its halves"
    )
    return batch, Event("subset_gaussian", multiplier, 1 / records, "gradient of one record")


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
    steps = longest(fits, len(levels), guess)
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


# One run is good with probability 1/2. Several runs and a private choice among them are nearly always good.


@dataclass(frozen=True)
class Boosting:
    """Private selection with random stopping (Liu and Talwar 2019): its cost, and the budget of each run.

    Every run has ε/12 and its score ε/12. After each run a coin with chance `coin` ends the selection, and there are at
    most `most` runs. The run with the smallest noisy score is the answer. With ε₁ = ε/6 and δ₁ = (δ / 4 most)² this is
    (3 ε₁ + 3 √(2δ₁), √(2δ₁) most + δ/2)-private, which is within (ε, δ) where δ ≤ ε / 10.

    >>> boosting = Boosting(1.0, 1e-6, failure=0.2)
    >>> boosting.most, round(boosting.epsilon_each, 4)
    (97, 0.0833)
    """

    epsilon: float
    delta: float
    failure: float  # probability of an answer worse than a good run's

    def __post_init__(self) -> None:
        if not 0 < self.failure < 1:
            raise UserError(f"failure is {self.failure}: give a probability between 0 and 1, such as 0.1")
        if self.delta > self.epsilon / 10:
            raise UserError(f"delta is {self.delta:g}: a choice among several runs needs at most epsilon / 10")

    @property
    def coin(self) -> float:
        return min(0.5, 0.75 * self.failure)

    @property
    def most(self) -> int:
        return math.ceil(math.log(2 / self.delta) / self.coin)

    @property
    def epsilon_each(self) -> float:
        return self.epsilon / 12

    @property
    def delta_each(self) -> float:
        return (self.delta / (4 * self.most)) ** 2

    def choose(
        self, run: Callable[[], np.ndarray], rows: sparse.csr_array, targets: np.ndarray, loss: Loss,
        largest_score: float, steepness: float, noise: VectorNoise, rng: np.random.Generator,
    ) -> np.ndarray:  # fmt: skip
        """Return only the chosen weights: the number of runs would reveal something about the worst run."""
        best, least = np.empty(0), math.inf
        for _ in range(self.most):
            weights = run()
            score, move = score_of(weights, rows, targets, loss, largest_score, steepness)
            score += float(noise.fresh().laplace(1, move / self.epsilon_each)[0])
            if score < least:
                best, least = weights, score
            if rng.random() < self.coin:
                break
        return best


def score_of(
    weights: np.ndarray, rows: sparse.csr_array, targets: np.ndarray, loss: Loss, largest_score: float, steepness: float
) -> tuple[float, float]:
    """Return a score of weights, risk or the gradient's norm, and by how much one record can change it."""
    records = rows.shape[0]
    if loss.convex:
        return risk(rows, targets, loss, weights), loss.largest(largest_score) / records
    return float(np.linalg.norm(gradient(rows, targets, loss, weights))), 2 * steepness / records
