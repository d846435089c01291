"""One run is good half of the time. Several runs and a private choice among them are good nearly always."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dprec.convex.losses import Loss, gradient, risk
from dprec.convex.release.mechanisms import VectorNoise
from dprec.errors import UserError


@dataclass(frozen=True)
class Boosting:
    """Private selection with random stopping (Liu and Talwar 2019): what it spends, and what each run may spend.

    Every run has ε/12 and its score ε/12. After each run a coin with chance `coin` ends the selection, and there are at
    most `most` runs. The run with the smallest noisy score is the answer. With ε₁ = ε/6 and δ₁ = (δ / 4 most)² this is
    (3 ε₁ + 3 √(2δ₁), √(2δ₁) most + δ/2)-private, which is within (ε, δ) where δ ≤ ε / 10.

    >>> boosting = Boosting(1.0, 1e-6, failure=0.2)
    >>> boosting.most, round(boosting.epsilon_each, 4)
    (97, 0.0833)
    """

    epsilon: float
    delta: float
    failure: float  # chance of an answer worse than a good run's

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
