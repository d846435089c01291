"""Ranks items by the histories that lead to them: linear discriminant analysis from one more sum over users.

An item is the likelier after a history, the nearer the history is to those before the item, in units of the variance
of histories. The sum has the mean of those histories. Earlier releases give the variance of histories, and the expected
mean of an item that noise hides. Items with too few users for pairs are described by the histories before them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.logs.histories import Histories
from dprec.models.items.described import item_counts, user_events
from dprec.models.items.spectral import MIX, SpectralItems
from dprec.models.items.succession import CLEAR, FIRST, LEAST, Steps, Succession, step_release, steps, together
from dprec.models.learning.learner import refuse_unless

BEFORE = "the histories before items"

# Chosen on validation items of MovieLens-1M and Amazon Games at ε = 1 and 5 (docs/dpformer.md).
CORE = 0.75  # pairs describe the n most popular items while these have at least CORE · noise · √n
LARGEST = 2000  # items that pairs describe: time grows with the third power
PLAIN = 3.0  # if the mean item has so many standard deviations of the first count's noise, it is counted only once
LATE = 0.3  # later events count more: an event's place in the history to this power
NEAR, FAR, SHARP = 0.6, 0.85, 0.7  # a history's weights: SHARP of it fades by the first, the rest by the second
COUNT = 0.3  # what an event adds to its item's count, relative to a history of length 1
EDGE = 0.9  # eigenvalues of the pairs just below the largest of the noise are used, too: later steps shrink noise
OWN = 0.6  # an item's popularity is its count in this sum to this power, times the first release's to the rest
RIDGE = 0.1  # of the mean variance of histories, added to that of each direction
STEEP, MANY = 1.2, 0.22  # factor of a score: the first, over the number of directions to the power of the second
CURVED = 0.37  # the part of a mean's squared length that bias subtracts; exact theory has half the score's factor
FLAT = 0.1  # power of the vectors' eigenvalues, instead of 1: common tastes count less, rarer ones more
LEVEL = 0.7  # power of vectors' lengths in the weights of a history's items
EXPECT, DESCRIBE = 0.03, 0.3  # ridges of the two regressions: of means on vectors, and of vectors on means


def leading_release(lead_share: float) -> Release:
    """Return the release of the histories that led to each item."""
    return Release("histories before items", lead_share)


def again_release(again_share: float) -> Release:
    """Return the release of a second count of items, or if noise hides little, of more histories before items."""
    return Release("item frequencies, or histories before items", again_share)


def more_release(more_share: float) -> Release:
    """Return the release of more steps from item to item if they are clear, otherwise of more histories."""
    return Release("steps, or histories before items", more_share)


class DiscriminantItems(SpectralItems):
    """Spectral items that are ranked by how near a history is to those that led to them.

    Args:
        arguments: those of `SpectralItems`.
        lead_share: part of the budget for the histories that led to each item.
        shrink: how far an item's noisy mean is shrunk towards its expected mean.
        step_share: part of the budget for steps from item to item; 0 does not count them.
        more_share: part for more steps, if they are clear of noise, otherwise for more histories.
        again_share: part for a second count of items, if the mean item has less than three times the noise of the
            first, otherwise for more histories; 0 counts nothing.
    """

    edge = EDGE

    def __init__(
        self,
        *arguments: Any,
        lead_share: float,
        shrink: float = 1.0,
        step_share: float = 0.0,
        more_share: float = 0.0,
        again_share: float = 0.0,
    ) -> None:
        super().__init__(*arguments)
        refuse_unless(again_share >= 0, "again_share", again_share, "0 or more")
        rest = 1 - self.frequencies.share - self.pairs.share - again_share
        refuse_unless(
            0 < lead_share < rest,
            "lead_share",
            lead_share,
            "a number above 0 that frequency_share, pair_share and again_share leave",
        )
        refuse_unless(0 <= shrink <= 1, "shrink", shrink, "a number from 0 to 1")
        refuse_unless((step_share > 0) == (more_share > 0), "more_share", more_share, "it and step_share, or neither")
        left = rest - lead_share
        refuse_unless(
            min(step_share, more_share) >= 0 and step_share + more_share <= left,
            "step_share",
            step_share,
            "0 or more, with more_share no more than other shares leave",
        )
        self.leads = leading_release(lead_share)
        self.steps = [step_release(step_share), more_release(more_share)] if step_share else []
        self.again = again_release(again_share) if again_share else None
        self.counted_again = False
        self.findings: list[str] = []
        self.succession = Succession(self.items) if step_share else None
        self.shrink = shrink
        self.ranked: Tensor
        self.register_buffer("ranked", torch.zeros(self.top, self.rank))

    @property
    def releases(self) -> tuple[Release, ...]:
        return *super().releases, self.leads, *self.steps, *([self.again] if self.again else [])

    @property
    def compared(self) -> Tensor:
        return self.ranked

    def count(self, histories: Histories, sums: ExactSums) -> tuple[np.ndarray, float]:
        counts, std = super().count(histories, sums)
        self.counted_again, self.findings = False, []
        if self.again is None:
            return counts, std
        mean = counts[1:].mean()
        self.counted_again = bool(mean < PLAIN * std)
        if std:
            times = f"the mean item's count is {mean / std:.1f} times its noise; counted again below {PLAIN:.0f}"
            self._spent(self.again, "counting items again" if self.counted_again else BEFORE, times)
        if not self.counted_again:
            return counts, std
        more = sums(self.again, self.items, histories.users, item_counts(histories))
        return together(counts, std, more, sums.std(self.again))

    def prepare(self, histories: Histories, sums: ExactSums) -> None:
        place, popularity = self.choose(histories, sums)
        core = self.core(popularity, sums.std(self.pairs))
        among = np.full(len(popularity) + 1, len(core))
        among[core] = np.arange(len(core))
        inner = among[np.minimum(place, len(popularity))]
        found = self.pair_vectors(histories, sums, inner, popularity[core])
        found, stretched = flattened(found[:, np.square(found).sum(0) > 0])
        self.error *= stretched
        vectors = np.zeros((len(popularity), found.shape[1]))
        vectors[core] = found
        n, r = vectors.shape
        weights = self.recency(len(self.weights)).double().numpy()

        def leads(release: Release) -> np.ndarray:
            found = sums(release, n * (r + 1), histories.users, histories_before(histories, place, vectors, weights))
            return found.reshape(n, r + 1)

        found, noise = leads(self.leads), sums.std(self.leads)
        if self.again is not None and not self.counted_again:
            found, noise = together(found, noise, leads(self.again), sums.std(self.again))
        ranking = discriminant(found, noise, vectors, popularity, self.shrink)
        if self.succession is not None:
            first, more = self.steps
            among = self.countable(popularity, together(0.0, sums.std(first), 0.0, sums.std(more))[1])
            part = popularity[among].sum() / popularity.sum()
            ids = self.chosen.cpu().numpy()[among]
            of_these = np.full(self.items, len(ids))
            of_these[ids] = np.arange(len(ids))

            def counted(release: Release) -> np.ndarray:
                size = len(ids) ** 2
                return sums(release, size, histories.users, steps(histories, of_these, len(ids))).reshape(len(ids), -1)

            look = Steps(counted(first), sums.std(first), popularity[among], part)
            sure = look.sure(ranking.after(among))
            stand_out = sure >= LEAST
            if look.noise_std:
                because = f"{sure:.1%} of steps depend on the item before; they are counted again from {LEAST:.0%} on"
                self._spent(more, "counting steps again" if stand_out else BEFORE, because)
            if stand_out:
                both = together(look.found, look.noise_std, counted(more), sums.std(more))
                self.succession.set(ids, Steps(*both, look.popularity, part).following())
            else:
                found, noise = together(found, noise, leads(more), sums.std(more))
                ranking = discriminant(found, noise, vectors, popularity, self.shrink)
        self.describe(ranking.vectors)
        self.ranked.zero_()[:n, :r] = torch.from_numpy(ranking.compared / MIX)
        with torch.no_grad():
            self.bias[:n] = torch.from_numpy(ranking.bias)

    def _spent(self, release: Release, on: str, because: str) -> None:
        self.findings.append(f"{release.share:.0%} of the budget went to {on}: {because}")

    def core(self, popularity: np.ndarray, noise_std: float) -> np.ndarray:
        """Return the places, ascending, of the items that pairs describe: at least two.

        Noise among n items has eigenvalues up to 2 · noise_std · √n, and an item adds to those of its pairs about in
        proportion to its popularity. So one more item helps while its popularity is above a multiple of noise_std · √n.
        """
        most = np.argsort(-popularity, kind="stable")[:LARGEST]
        rare = popularity[most] < CORE * noise_std * np.sqrt(np.arange(1, len(most) + 1))
        return np.sort(most[: max(2, int(rare.argmax()) if rare.any() else len(most))])

    def countable(self, popularity: np.ndarray, noise_std: float) -> np.ndarray:
        """Return the places, ascending, of items with enough users for a step between two to be clear of noise."""
        most = np.argsort(-popularity, kind="stable")[:FIRST]
        return np.sort(most[: max(2, int((popularity[most] >= CLEAR * noise_std).sum()))])

    def recency(self, recent: int) -> Tensor:
        ages = torch.arange(recent).float()
        return SHARP * NEAR**ages + (1 - SHARP) * FAR**ages

    def scaled(self, summed: Tensor, weight: Tensor) -> Tensor:
        return summed / summed.square().sum(2, keepdim=True).clamp(min=1e-12).sqrt()


def flattened(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Return vectors (n, r) of mean length 1 whose axes differ less in size, and the factor of their errors.

    The smaller an axis is, the larger is the error along it.

    >>> vectors, stretched = flattened(np.diag([1.5, 0.5]))
    >>> vectors.diagonal().round(2).tolist(), round(stretched, 2)
    ([1.05, 0.95], 1.81)
    """
    sizes = np.linalg.norm(vectors, axis=0)
    factors = sizes ** (FLAT - 1)
    factors /= max(np.linalg.norm(vectors * factors, axis=1).mean(), 1e-300)
    errors = np.square(1 / sizes)
    stretched = math.sqrt((errors @ np.square(factors)) / errors.sum()) if len(sizes) else 1.0
    return vectors * factors, stretched


def histories_before(
    histories: Histories, place: np.ndarray, vectors: np.ndarray, weights: np.ndarray
) -> Iterator[Portion]:
    """Yield the history before each chosen item, as entries of sums (n, r + 1) for n items with `vectors` (n, r).

    A history is the sum of its last items' vectors times `weights`, the latest first, scaled to length 1. The last
    number of an item's row counts its events, each as `COUNT`. Later events count more.
    `place` (items,) is the place of an item among the chosen ones, n or more for other items.
    """
    (n, r), known = vectors.shape, np.vstack([vectors, np.zeros(vectors.shape[1])])
    for users, _, items in user_events(histories, r + 1):
        places = np.minimum(place[items], n)
        before = np.zeros((len(users), r + 1))
        for age in range(1, min(len(weights), len(users) - 1) + 1):
            same = users[age:] == users[:-age]
            before[age:, :r] += np.where(same[:, None], weights[age - 1] * known[places[:-age]], 0.0)
        length = np.linalg.norm(before, axis=1)
        told = (places < n) & (length > 0)
        before = before[told] / length[told, None]
        before[:, r] = COUNT
        before *= _later(users)[told, None] ** LATE
        keys = places[told, None] * (r + 1) + np.arange(r + 1)
        yield Portion(np.repeat(users[told], r + 1), keys.ravel(), before.ravel())


def _later(users: np.ndarray) -> np.ndarray:
    """Return each event's relative place in its user's history, above 0 and at most 1.

    >>> _later(np.array([3, 3, 7])).tolist()
    [0.5, 1.0, 1.0]
    """
    _, first, lengths = np.unique(users, return_index=True, return_counts=True)
    found: np.ndarray = (np.arange(len(users)) - np.repeat(first, lengths) + 1) / np.repeat(lengths, lengths)
    return found


@dataclass(frozen=True)
class Ranking:
    """Ranks n items by a history: the sum of its items' `vectors`, times `compared`, plus `bias`."""

    vectors: np.ndarray  # (n, r)
    compared: np.ndarray  # (n, r)
    bias: np.ndarray  # (n,)

    def after(self, among: np.ndarray) -> np.ndarray:
        """Return the probability (k, k) of each of the items `among` (k,) after a history of only one of these."""
        given = self.vectors[among]
        given = given / np.maximum(np.linalg.norm(given, axis=1, keepdims=True), 1e-6)
        found = [part @ self.compared.T + self.bias for part in np.array_split(given, -(-len(given) // 256))]
        weights = [np.exp(scores - scores.max(1, keepdims=True)) for scores in found]
        return np.concatenate([part[:, among] / part.sum(1, keepdims=True) for part in weights])


def discriminant(
    found: np.ndarray, noise_std: float, vectors: np.ndarray, popularity: np.ndarray, shrink: float
) -> Ranking:
    """Compute the ranking from the noisy sum of `histories_before`.

    An item's mean is shrunk, by its noise and `shrink`, towards the mean that its vector predicts. Items without a
    vector (zero) are shrunk towards the mean of all, and get the vector that their mean predicts.
    """
    count = np.maximum(found[:, -1], max(noise_std, 1e-9)) / COUNT
    middle = found[:, :-1].sum(0) / count.sum()
    core = np.square(vectors).sum(1) > 0
    axes, scale = _whitening(vectors, popularity)
    means = (found[:, :-1] / count[:, None] - middle) @ axes / scale
    noise = np.square(noise_std / count[:, None] / scale)
    expected = np.zeros_like(means)
    expected[core] = _expected(means[core], noise[core], vectors[core] @ axes, count[core])
    for group in (core, ~core):
        means[group] = _shrunk(means[group], noise[group], expected[group], count[group], shrink)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    weighed = vectors * np.maximum(lengths, 1e-12) ** (LEVEL - 1)
    weighed[~core] = means[~core] @ _ridge(means[core], weighed[core], count[core], DESCRIBE)
    steep = STEEP / max(vectors.shape[1], 1) ** MANY
    compared = steep * (means / scale) @ axes.T
    met = OWN * np.log(count / count.sum()) + (1 - OWN) * np.log(popularity / popularity.sum())
    bias = met - CURVED * np.square(means).sum(1) - compared @ middle
    return Ranking(weighed, compared, bias)


def _whitening(vectors: np.ndarray, popularity: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the axes (r, r) of histories' variance and the standard deviations (r,), estimated from pairs."""
    met = vectors.T @ (np.sqrt(popularity)[:, None] * vectors)
    variances, axes = np.linalg.eigh(met @ met / max(np.square(met).sum(), 1e-300))
    ridge = RIDGE * max(variances.sum(), 1e-12) / max(len(variances), 1)
    return axes, np.sqrt(np.maximum(variances, 0.0) + ridge)


def _expected(means: np.ndarray, noise: np.ndarray, vectors: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the means (n, r) that the directions of vectors predict, by regression with the noise's variances."""
    directions = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    directions = directions - count @ directions / max(count.sum(), 1e-300)
    spread = np.maximum(_variance(means, noise, count), 1e-9)
    found = [
        directions @ _ridge(directions, mean[:, None], 1 / (hidden + varied), EXPECT)
        for mean, hidden, varied in zip(means.T, noise.T, spread, strict=True)
    ]
    return np.hstack(found) if found else np.zeros_like(means)


def _shrunk(means: np.ndarray, noise: np.ndarray, expected: np.ndarray, count: np.ndarray, shrink: float) -> np.ndarray:
    """Shrink means towards their expectations, in each direction by their variance relative to the noise.

    With a `shrink` of 1 each is the best estimate. Such estimates vary less than the true means, especially for rare
    items, and an item with a mean like others' is rarely ranked first. With 0.5 they vary as much.
    """
    spread = np.maximum(_variance(means - expected, noise, count), 0.0)
    shrunk: np.ndarray = expected + (means - expected) * (spread / np.maximum(spread + noise, 1e-300)) ** shrink
    return shrunk


def _variance(found: np.ndarray, noise: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the variance of `found` (n, r) around 0 in each direction, minus the noise's; it may be negative."""
    variance: np.ndarray = count @ (np.square(found) - noise) / max(count.sum(), 1e-300)
    return variance


def _ridge(given: np.ndarray, wanted: np.ndarray, weight: np.ndarray, ridge: float) -> np.ndarray:
    """Return the coefficients (r, k) of the weighted ridge regression of `wanted` (n, k) on `given` (n, r)."""
    products = (given * weight[:, None]).T @ given
    products += np.eye(len(products)) * (ridge * np.trace(products) / max(len(products), 1) + 1e-300)
    found: np.ndarray = np.linalg.solve(products, (given * weight[:, None]).T @ wanted)
    return found
