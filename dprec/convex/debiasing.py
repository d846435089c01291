"""A gradient estimate that has the bias of the largest batch, mostly at the cost of small ones.

A private mean of a small batch has more bias than that of a large one. The estimate draws a size at random, takes the
difference between a batch of this size and its halves, and divides it by the probability of the size. In expectation
the differences add up to the estimate from the largest batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dprec.accounting.ledger import Event
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
    """Return the events of the four calls, where each adds Gaussian noise of `multiplier` times its sensitivity.

    A record of the batch is in one of the halves, never in both, and moves two of the three answers: together this is
    a Gaussian of multiplier / √2. The single record is drawn independently of the batch.
    """
    batch = Event(
        "subset_gaussian", multiplier / math.sqrt(2), 2 ** (level + 1) / records, "gradients of a batch and its halves"
    )
    return batch, Event("subset_gaussian", multiplier, 1 / records, "gradient of one record")
