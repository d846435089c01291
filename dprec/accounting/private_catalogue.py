"""Chooses the ids that may be published: those whose noisy count of users is above a threshold.

Each user spreads a vector of norm 1 evenly over at most `MOST` of their ids. Every id that any user has gets its sum
plus Gaussian noise, and is chosen if the result is above a threshold. Consider neighbours that differ by one user. For
ids that others have too, this is post-processing of the Gaussian mechanism with sensitivity 1. Ids that only this user
has, at most t if the user spreads 1 / √t on each, exist in one data set only. With the threshold, any of them is chosen
with probability at most δ', for every t. So the choice is the Gaussian mechanism except with probability δ', and the
ledger has both. This is the weighted Gaussian mechanism of Gopi et al. 2020, Differentially Private Set Union.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy  # loads its parts on demand
import torch

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.ledger import Event
from dprec.accounting.release import AHEAD, Portion, Release, release_events, unit_sum
from dprec.errors import UserError
from dprec.noise.gaussian import ROUNDING, GaussianNoise

WHAT = "item catalogue"
MOST = 200  # ids of one user that are counted
HIDDEN = 0.05  # part of δ for ids that only one user has
NOTHING = 1e12  # the noise multiplier of an event that costs δ and no ε


@dataclass(frozen=True)
class PrivateCatalogue:
    """The choice of the ids that a run may publish, and its cost.

    >>> choice = PrivateCatalogue.of(PrivacyBudget(8, 1 / 6040), share=0.1)
    >>> round(choice.noise_multiplier, 2), round(choice.threshold, 1), len(choice.events)
    (1.68, 9.1, 2)
    """

    noise_multiplier: float
    hidden: float  # δ'

    def __post_init__(self) -> None:
        if not (self.noise_multiplier > 0 and 0 < self.hidden < 1):
            raise ValueError(f"a choice needs noise and a δ, not {self.noise_multiplier} and {self.hidden}")

    @classmethod
    def of(cls, budget: PrivacyBudget, share: float) -> PrivateCatalogue:
        """Return the choice that a share of a budget pays for."""
        rest = PrivacyBudget(budget.epsilon, budget.delta * (1 - HIDDEN))
        (event,) = release_events(rest, [Release(WHAT, share)]).values()
        return cls(event.noise_multiplier, budget.delta * HIDDEN)

    @property
    def events(self) -> tuple[Event, Event]:
        """The events of its cost: the counts, and the δ of ids that only one user has."""
        return (
            Event("gaussian", self.noise_multiplier, what=WHAT),
            Event("bounded", NOTHING, what=f"{WHAT}, ids of one user alone", delta=self.hidden),
        )

    @staticmethod
    def recorded(events: Iterable[Event]) -> tuple[Event, ...]:
        """Return a ledger's events of such a choice."""
        return tuple(event for event in events if event.what.startswith(WHAT))

    @property
    def std(self) -> float:
        return self.noise_multiplier * (1 + ROUNDING)

    @property
    def threshold(self) -> float:
        """The threshold of an id's noisy count: t ids of 1 / √t each are all below it with probability 1 - δ'."""
        t = np.arange(1, MOST + 1)
        below = scipy.special.ndtri_exp(math.log1p(-self.hidden) / t)
        return float(np.max(1 / np.sqrt(t) + self.std * below))

    def leak(self, t: int) -> float:
        """Return the probability that any of t ids that only one user has is chosen."""
        return -math.expm1(t * float(scipy.special.log_ndtr((self.threshold - 1 / math.sqrt(t)) / self.std)))

    def choose(
        self, met: Iterable[tuple[np.ndarray, np.ndarray]], users: int, size: int, noise: GaussianNoise
    ) -> np.ndarray:
        """Return the chosen ids of `size`, in order. `met` yields users with their ids, some users at a time.

        The rows of one user are consecutive, and ids that should count come first.
        """
        has = np.zeros(size, dtype=bool)

        def portions() -> Iterator[Portion]:
            for user, item in met:
                counted = _spread(user, item)
                # The threshold holds for these ids: others would be noise alone, and many of them would be above it.
                has[counted.keys] = True
                yield counted

        sums = unit_sum(size, users, portions())
        found = np.flatnonzero(has)
        noisy = torch.from_numpy(sums[found])
        noise.at(AHEAD).add_(noisy, self.std)
        chosen = found[noisy.numpy() > self.threshold]
        if len(chosen) < 2:
            raise UserError(
                f"a private catalogue finds {len(chosen)} items that enough users met: raise data.catalogue_share or "
                "privacy.epsilon, or give data.catalogue a public file"
            )
        return chosen


def _spread(user: np.ndarray, item: np.ndarray) -> Portion:
    """Return the first `MOST` rows of every user."""
    starts = np.flatnonzero(np.diff(user, prepend=-1))
    place = np.arange(len(user)) - np.repeat(starts, np.diff(starts, append=len(user)))
    kept = place < MOST
    return Portion(user[kept], item[kept], np.ones(int(kept.sum())))
