"""Items told apart by the histories that lead to them: a linear discriminant analysis from one more sum over users.

An item is as likely after a history as the history is near those that came before the item, in units of how histories
vary. The sum has the mean of those histories. How histories vary follows from what was released before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.logs.histories import Histories
from dprec.models.items.cooccurrence import user_events
from dprec.models.items.spectral import MIX, SpectralItems
from dprec.models.learning.learner import refuse_unless

COUNT = 0.3  # what an event adds to its item's count, beside a history of length 1
RIDGE = 0.15  # of the mean variance of histories, added to that of each direction
STEEP = 0.5  # the part of a score that is believed: histories are no normal distribution
CURVED = 0.75  # the part of squared lengths that bias takes off; half of them, if they were one


def leading_release(lead_share: float) -> Release:
    """Which histories led to an item."""
    return Release("histories before items", lead_share)


class DiscriminantItems(SpectralItems):
    """Spectral items that are ranked by how near a history is to those that led to them.

    Args:
        arguments: those of `SpectralItems`.
        lead_share: part of the budget for the histories that led to each item.
    """

    fade = 0.65

    def __init__(self, *arguments: Any, lead_share: float) -> None:
        super().__init__(*arguments)
        rest = 1 - self.frequencies.share - self.pairs.share
        refuse_unless(0 < lead_share < rest, "lead_share", lead_share)
        self.leads = leading_release(lead_share)
        self.ranked: Tensor
        self.register_buffer("ranked", torch.zeros(self.top, self.rank))

    @property
    def releases(self) -> tuple[Release, ...]:
        return *super().releases, self.leads

    @property
    def compared(self) -> Tensor:
        return self.ranked

    def prepare(self, histories: Histories, sums: ExactSums) -> None:
        place, popularity = self.choose(histories, sums)
        vectors = self.describe_pairs(histories, sums, place, popularity)
        vectors = vectors[:, np.square(vectors).sum(0) > 0]
        n, r = vectors.shape
        portions = histories_before(histories, place, vectors, self.fade, len(self.weights))
        found = sums(self.leads, n * (r + 1), histories.users, portions).reshape(n, r + 1)
        compared, bias = discriminant(found, sums.std(self.leads), vectors, popularity)
        self.ranked.zero_()[:n, :r] = torch.from_numpy(compared / MIX)
        with torch.no_grad():
            self.bias[:n] += torch.from_numpy(bias)

    def scaled(self, summed: Tensor, weight: Tensor) -> Tensor:
        return summed / (summed.square().sum(2, keepdim=True) + 1e-12).sqrt()


def histories_before(
    histories: Histories, place: np.ndarray, vectors: np.ndarray, fade: float, recent: int
) -> Iterator[Portion]:
    """What came before each chosen item: entries of sums (n, r + 1) for n items with `vectors` (n, r).

    A history is the sum of the vectors of its last `recent` items, of which one counts `fade` times as much as the one
    after it, scaled to length 1. The last number of an item's row counts its events, each as `COUNT`.
    `place` (items,) is the place of an item among the chosen ones, n or more for other items.
    """
    (n, r), known = vectors.shape, np.vstack([vectors, np.zeros(vectors.shape[1])])
    for users, _, items in user_events(histories, r + 1):
        places = np.minimum(place[items], n)
        before = np.zeros((len(users), r + 1))
        for age in range(1, min(recent, len(users) - 1) + 1):
            same = users[age:] == users[:-age]
            before[age:, :r] += np.where(same[:, None], fade ** (age - 1) * known[places[:-age]], 0.0)
        length = np.linalg.norm(before, axis=1)
        told = (places < n) & (length > 0)
        before = before[told] / length[told, None]
        before[:, r] = COUNT
        keys = places[told, None] * (r + 1) + np.arange(r + 1)
        yield Portion(np.repeat(users[told], r + 1), keys.ravel(), before.ravel())


def discriminant(
    found: np.ndarray, noise_std: float, vectors: np.ndarray, popularity: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors (n, r) and a bias (n,) that score items by the history before them, from `histories_before`.

    An item's mean is drawn towards the mean of all as far as noise hides it: in each direction by what the variance
    of the means is there, beside that of this item's noise.
    """
    count = np.maximum(found[:, -1], max(noise_std, 1e-9)) / COUNT
    middle = found[:, :-1].sum(0) / count.sum()
    met = vectors.T @ (np.sqrt(popularity)[:, None] * vectors)  # histories vary along with who is met together
    variances, axes = np.linalg.eigh(met @ met / max(np.square(met).sum(), 1e-300))
    scale = np.sqrt(np.maximum(variances, 0.0) + RIDGE * max(variances.sum(), 1e-12) / max(len(variances), 1))
    means = (found[:, :-1] / count[:, None] - middle) @ axes / scale
    noise = np.square(noise_std / count[:, None] / scale)
    spread = np.maximum((count[:, None] * (np.square(means) - noise)).sum(0) / count.sum(), 0.0)
    means *= spread / np.maximum(spread + noise, 1e-300)
    compared = STEEP * (means / scale) @ axes.T
    return compared, -STEEP * CURVED * np.square(means).sum(1) - compared @ middle
