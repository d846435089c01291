"""Sums over all users that a model requests once, before training: frequencies, co-occurrences.

Each user's vector is scaled to norm 1 here, not by the caller, so that one Gaussian per entry protects all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dprec.accounting import selection
from dprec.accounting.budget import PrivacyBudget, calibrate
from dprec.accounting.ledger import Event
from dprec.errors import UserError
from dprec.noise.gaussian import ROUNDING, GaussianNoise

SMALLEST = 1e-12  # shorter vectors count as zero
AHEAD = 1 << 62  # numbers the noise of releases, apart from training steps


@dataclass(frozen=True)
class Release:
    """One sum over all users, or those of one period, and its share of the run's budget.

    A model or strategy returns its requests from `releases`, so that the plan pays for them before data is read.
    Shares are parts of 1/σ²: releases with shares that add up to 1 spend the whole budget and leave nothing for
    training. Shares of different periods are not added.

    Args:
        what: the name of the sum in the ledger and in reports.
        share: part of the run's budget, above 0 and at most 1.
        period: the number of the period whose users are in the sum. None: all users.
        drawn: if above 0, no sum is returned, but so many places, drawn by their numbers of users (`ExactSums.select`).

    >>> from dprec.sparsity import Release
    >>> Release("item frequencies", share=0.05)
    Release(what='item frequencies', share=0.05, period=None, drawn=0)
    """

    what: str
    share: float
    period: int | None = None
    drawn: int = 0  # if above 0, so many places are drawn by their numbers of users, and no sum is returned (`select`)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise UserError(
                f"{self.what}: a release takes a share of the budget above 0 and at most 1, not {self.share}"
            )


@dataclass(frozen=True)
class Portion:
    """Some users' sparse vectors: entry n adds `values[n]` to place `keys[n]` for user `users[n]`; repeats add up."""

    users: np.ndarray  # (n,) int64
    keys: np.ndarray  # (n,) int64
    values: np.ndarray  # (n,) float64


class ExactSums:
    """Answers releases without noise: training without privacy."""

    noise_multiplier = 0.0

    def __call__(self, release: Release, size: int, users: int, portions: Iterable[Portion]) -> np.ndarray:
        """Return Σ_u v_u / ‖v_u‖ (size,) in float64, each user's vector scaled to norm 1."""
        return unit_sum(size, users, portions)

    def std(self, release: Release) -> float:
        """Return the standard deviation of the noise in each entry of the answer."""
        return 0.0

    def select(
        self, release: Release, parts: Sequence[np.ndarray], size: int, users: int, portions: Iterable[Portion]
    ) -> np.ndarray:
        """Return the places that most users name, equally many of each part, ascending (`accounting/selection`).

        A user counts 1 at every place that the user names, for any values.
        """
        draws = selection.draws_of(parts, release.drawn)
        return selection.drawn(users_at(size, users, portions), parts, draws, math.inf, np.zeros)


class NoisySums(ExactSums):
    """Answers each release once, with Gaussian noise, after the ledger has recorded it."""

    def __init__(self, events: Mapping[Release, Event], noise: GaussianNoise, record: Callable[[Event], None]) -> None:
        self._events = dict(events)
        self._noise = noise
        self._record = record
        self._asked: set[Release] = set()

    def __call__(self, release: Release, size: int, users: int, portions: Iterable[Portion]) -> np.ndarray:
        noise, ranks = self._paid(release, drawn=False), self._noise.ranks
        total = unit_sum(size, users, portions) if ranks.first else np.zeros(size)
        noise.add_(torch.from_numpy(total), self.std(release))
        ranks.from_first_(torch.from_numpy(total))  # only the first process adds it up, and all get the same bits
        return total

    def std(self, release: Release) -> float:
        return self._events[release].noise_multiplier * (1 + ROUNDING)

    def select(
        self, release: Release, parts: Sequence[np.ndarray], size: int, users: int, portions: Iterable[Portion]
    ) -> np.ndarray:
        noise, ranks = self._paid(release, drawn=True), self._noise.ranks
        draws = selection.draws_of(parts, release.drawn)
        epsilon = selection.epsilon_of(self._events[release].noise_multiplier, sum(draws))
        counts = users_at(size, users, portions) if ranks.first else np.zeros(size)
        chosen = selection.drawn(counts, parts, draws, epsilon, lambda many: noise.uniforms(many).numpy())
        ranks.from_first_(torch.from_numpy(chosen))
        return chosen

    def _paid(self, release: Release, drawn: bool) -> GaussianNoise:
        """Record a release, once, and return its own noise."""
        if release not in self._events or (release.drawn > 0) is not drawn:
            raise UserError(f"the release of {release.what} was not planned: return it from `releases`")
        if release in self._asked:
            raise UserError(f"the release of {release.what} is paid for once: ask once, keep the answer")
        self._asked.add(release)
        self._record(self._events[release])  # first: a crash may over-count, never under-count
        # By its place in the plan: a resumed run continues with the noise of the next ones.
        return self._noise.at(AHEAD + 1 + list(self._events).index(release))


def release_events(budget: PrivacyBudget, releases: Iterable[Release]) -> dict[Release, Event]:
    """Return the Gaussian event that each release's share of the budget pays for.

    >>> events = release_events(PrivacyBudget(5, 1 / 6040), [Release("frequencies", 0.5), Release("counts", 0.5)])
    >>> [round(event.noise_multiplier, 2) for event in events.values()]
    [1.09, 1.09]
    """
    releases = list(releases)
    if not releases:
        return {}
    shares = [sum(r.share for r in releases if r.period in (None, p)) for p in {r.period for r in releases}]
    if (whole := max(shares)) > 1 + 1e-9:
        raise UserError(f"releases take {whole:.3g} of the budget: lower their shares to at most 1 together")
    alone = calibrate(budget, lambda sigma: Event("gaussian", sigma), steps=1)
    return {r: Event("gaussian", alone / math.sqrt(r.share), what=r.what, period=r.period) for r in releases}


def unit_sum(size: int, users: int, portions: Iterable[Portion]) -> np.ndarray:
    """Return Σ_u v_u / ‖v_u‖; users whose vector is zero or not finite add nothing.

    >>> unit_sum(3, 2, [Portion(np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([3.0, 4.0, -2.0]))]).round(9)
    array([ 0.6, -0.2,  0. ])
    """
    total = np.zeros(size)
    for portion in _checked(size, users, portions):
        places, back = np.unique(portion.users * size + portion.keys, return_inverse=True)
        owners, keys = np.divmod(places, size)
        values = np.bincount(back, weights=portion.values, minlength=len(places))
        first = int(owners[0]) if len(owners) else 0
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.bincount(owners - first, weights=np.square(values)))
            factors = np.where(np.isfinite(norms) & (norms > SMALLEST), 1 / np.maximum(norms, SMALLEST), 0.0)
        values = np.where(factors[owners - first] > 0, values, 0.0) * factors[owners - first]
        total += np.bincount(keys, weights=values, minlength=size)
    return total


def users_at(size: int, users: int, portions: Iterable[Portion]) -> np.ndarray:
    """Return how many users name each place.

    >>> users_at(3, 2, [Portion(np.array([0, 0, 1]), np.array([1, 1, 1]), np.array([3.0, 4.0, 0.0]))])
    array([0., 2., 0.])
    """
    total = np.zeros(size)
    for portion in _checked(size, users, portions):
        total += np.bincount(np.unique(portion.users * size + portion.keys) % size, minlength=size)
    return total


def _checked(size: int, users: int, portions: Iterable[Portion]) -> Iterator[Portion]:
    """Refuse portions in which one person would count as two, or as another person."""
    seen = np.zeros(users, dtype=bool)
    for portion in portions:
        here = np.unique(portion.users)
        if len(here) and not 0 <= here[0] <= here[-1] < users:
            raise ValueError(f"a portion names users outside 0..{users - 1}")
        if seen[here].any():
            raise ValueError(f"user {here[seen[here]][0]} is in two portions: give all a user adds in one")
        seen[here] = True
        if not ((portion.keys >= 0) & (portion.keys < size)).all():  # else they would count as another user's
            raise ValueError(f"a portion names places outside 0..{size - 1}")
        yield portion
