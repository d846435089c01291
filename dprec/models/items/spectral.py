"""Items described by two noisy sums over all users; the descriptions are fixed during training.

Noise has the smallest effect on a sum with few entries to which every user contributes much. So one sum counts the
users of each item, and one counts pairs of popular items seen together; its leading eigenvectors describe the items.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.accounting.release import ExactSums, Release
from dprec.data.logs.histories import Histories
from dprec.models.items.described import DescribedItems, pair_weights
from dprec.models.learning.learner import refuse_unless

MIX = 3.0  # scale of the scores before training
FADE = 0.85  # before training, the weight of an item of a history falls by this with each later item
FILLS = 4  # rounds that find the vectors and then the diagonal
EDGE = 1.0  # the least eigenvalue that is used, relative to the largest of noise alone


def spectral_releases(frequency_share: float, pair_share: float) -> tuple[Release, Release]:
    """Return the releases of item counts and of pairs seen together."""
    return Release("item frequencies", frequency_share), Release("items met together", pair_share)


class SpectralItems(DescribedItems):
    """The most popular items, their vectors, and the trained parameters that rank them by the items of a history.

    The arguments are those of `Spectral`.
    """

    edge = EDGE

    def __init__(
        self,
        items: int,
        top: int,
        rank: int,
        window: int,
        decay: float,
        damping: float,
        recent: int,
        frequency_share: float,
        pair_share: float,
        clear: float,
        noise_share: float = 1.0,
    ) -> None:
        rest = "a number above 0, below 1 less frequency_share"
        for name, value, fits, instead in (
            ("window", window, window >= 1, "1 or more"),
            ("decay", decay, 0 < decay <= 1, "a number above 0, up to 1"),
            ("damping", damping, 0 <= damping <= 1, "a number from 0 to 1"),
            ("recent", recent, recent >= 1, "1 or more"),
            ("frequency_share", frequency_share, 0 < frequency_share < 1, "a number between 0 and 1"),
            ("pair_share", pair_share, 0 < pair_share < 1 - frequency_share, rest),
        ):
            refuse_unless(fits, name, value, instead)
        frequencies, pairs = spectral_releases(frequency_share, pair_share)
        super().__init__(items, top, rank, clear, frequencies, noise_share)
        self.window, self.decay, self.damping = window, decay, damping
        self.pairs = pairs
        self.error: Tensor
        self.register_buffer("error", torch.zeros(()))  # standard error in each coordinate of a vector
        self.mix = nn.Parameter(MIX * torch.eye(self.rank))
        self.weights = nn.Parameter(self.recency(recent))
        self.bias = nn.Parameter(torch.zeros(self.top))

    @property
    def releases(self) -> tuple[Release, ...]:
        return self.frequencies, self.pairs

    def prepare(self, histories: Histories, sums: ExactSums) -> None:
        self.describe(self.pair_vectors(histories, sums, *self.choose(histories, sums)))

    def pair_vectors(
        self, histories: Histories, sums: ExactSums, place: np.ndarray, popularity: np.ndarray
    ) -> np.ndarray:
        """Return vectors (n, rank) of items, computed from pairs met together.

        `place` (items,) is the place of an item among these n, n or more for other items; `popularity` is (n,).
        """
        n = len(popularity)
        pairs = pair_weights(histories, place, popularity**-self.damping, self.window, self.decay)
        upper = sums(self.pairs, n**2, histories.users, pairs).reshape(n, n)
        vectors, error = spectral_vectors(np.triu(upper, 1), self.rank, sums.std(self.pairs), self.edge)
        self.error.fill_(error)
        return vectors

    def recency(self, recent: int) -> Tensor:
        """Return how much each of the last items of a history counts before training, the latest first: (recent,)."""
        return FADE ** torch.arange(recent).float()

    def recent(self, history: Tensor, described: Tensor) -> Tensor:
        """Return the mix of the last items' vectors at each position, (B, T, r)."""
        known = (self.place[history] != self.top).to(described.dtype)
        length, ages = history.shape[1], range(len(self.weights))
        past = torch.stack([F.pad(described, (0, 0, age, 0))[:, :length] for age in ages], 3)  # (B, T, r, recent)
        weight = torch.stack([F.pad(known, (age, 0))[:, :length] * FADE**age for age in ages], 2).sum(2, keepdim=True)
        mixed: Tensor = self.scaled(past @ self.weights, weight) @ self.mix
        return mixed

    def scaled(self, summed: Tensor, weight: Tensor) -> Tensor:
        """Scale histories (B, T, r), `summed` over items, by the root of the items' total `weight` (B, T, 1)."""
        return summed / (weight + 1e-6).sqrt()


def spectral_vectors(upper: np.ndarray, rank: int, noise_std: float, edge: float = EDGE) -> tuple[np.ndarray, float]:
    """Return vectors (n, rank) of mean length 1 whose products are the strictly upper-triangular sums, denoised.

    Also return the mean standard error of their coordinates from the noise.

    The noise has eigenvalues up to 2 · noise_std · √n. Smaller eigenvalues than `edge` times that are dropped, larger
    ones are shrunk to their likely size. The sums do not have an item's product with itself: it is computed from the
    vectors, and the vectors are computed again with it, a few times.

    >>> vectors, error = spectral_vectors(np.triu(np.ones((4, 4)), 1), rank=2, noise_std=0.0)
    >>> vectors.shape, error
    ((4, 2), 0.0)
    """
    products = upper + upper.T
    for _ in range(FILLS):
        values, vectors = np.linalg.eigh(products)
        positive = np.maximum(values, 0.0)
        shrunk = np.sqrt(np.maximum(positive**2 - 4 * (edge * noise_std) ** 2 * len(values), 0.0))
        leading = np.argsort(-shrunk)[:rank]
        described = vectors[:, leading] * np.sqrt(shrunk[leading])
        np.fill_diagonal(products, np.square(described).sum(1))
    mean = np.linalg.norm(described, axis=1).mean()
    if not (mean > 0 and math.isfinite(mean)):
        return described, 0.0
    # To first order, the error of a vector's coordinate k is the noise of its row along eigenvector k, over √value k.
    left = values[leading][shrunk[leading] > 0]
    return described / mean, float(noise_std * np.sqrt((1 / left).sum() / rank) / mean)
