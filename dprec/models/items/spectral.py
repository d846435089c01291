"""Items described by two noisy sums over all users; the descriptions do not change while a model trains.

Noise has the smallest effect on a sum with few entries to which every user contributes much. So one sum counts the
users of each item, and one counts which popular items are seen together; its leading eigenvectors describe the items.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.accounting.release import ExactSums, Release
from dprec.data.logs.histories import Histories
from dprec.models.items.cooccurrence import item_counts, pair_weights
from dprec.models.learning.learner import refuse_unless

MIX = 3.0  # scale of the scores before training
FADE = 0.85  # before training, the weight of an item of a history falls by this with each later item
FILLS = 4  # rounds that find the vectors and then the diagonal
NOBODY = -1e4  # bias of a place that no item has: its share of a softmax, and so its gradient, is 0
FLOOR = 1.0  # users' worth of popularity that every item has


def spectral_releases(frequency_share: float, pair_share: float) -> tuple[Release, Release]:
    """How many users saw each item, and which items they saw together."""
    return Release("item frequencies", frequency_share), Release("items met together", pair_share)


class SpectralItems(nn.Module):
    """The most popular items, their vectors, and the trained parameters that rank them by the items of a history.

    The arguments are those of `Spectral`.
    """

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
    ) -> None:
        super().__init__()
        for name, value, fits in (
            ("top", top, top >= 2),
            ("rank", rank, rank >= 1),
            ("window", window, window >= 1),
            ("decay", decay, 0 < decay <= 1),
            ("damping", damping, 0 <= damping <= 1),
            ("recent", recent, recent >= 1),
            ("frequency_share", frequency_share, 0 < frequency_share < 1),
            ("pair_share", pair_share, 0 < pair_share < 1 - frequency_share),
            ("clear", clear, 0 <= clear < math.inf),
        ):
            refuse_unless(fits, name, value)
        self.items = items
        self.top = min(top, items - 1)
        self.rank = min(rank, self.top)
        self.window, self.decay, self.damping, self.clear = window, decay, damping, clear
        self.frequencies, self.pairs = spectral_releases(frequency_share, pair_share)
        self.popularity: Tensor
        self.place: Tensor
        self.vectors: Tensor
        self.error: Tensor
        self.register_buffer("popularity", torch.zeros(items))  # as released
        self.register_buffer("place", torch.full((items,), self.top))  # among the chosen; `top` for the others
        self.register_buffer("vectors", torch.zeros(self.top + 1, self.rank))  # the last row for the others
        self.register_buffer("error", torch.zeros(()))  # standard error in each coordinate of a vector
        self.mix = nn.Parameter(MIX * torch.eye(self.rank))
        self.weights = nn.Parameter(FADE ** torch.arange(recent).float())
        self.bias = nn.Parameter(torch.zeros(self.top))

    @property
    def releases(self) -> tuple[Release, ...]:
        return self.frequencies, self.pairs

    def prepare(self, histories: Histories, sums: ExactSums) -> None:
        """Choose the items and describe them, from sums over all users."""
        counts = sums(self.frequencies, self.items, histories.users, item_counts(histories))
        counts[0] = -np.inf
        chosen = self._clear(counts, sums.std(self.frequencies))
        place = np.full(self.items, self.top)
        place[chosen] = np.arange(len(chosen))
        popularity = np.maximum(counts[chosen], max(FLOOR, sums.std(self.frequencies)))
        pairs = pair_weights(histories, place, popularity**-self.damping, self.window, self.decay)
        upper = sums(self.pairs, len(chosen) ** 2, histories.users, pairs).reshape(len(chosen), len(chosen))
        vectors, error = spectral_vectors(np.triu(upper, 1), self.rank, sums.std(self.pairs))
        counts[0] = 0.0
        self.popularity.copy_(torch.from_numpy(counts))
        self.place.copy_(torch.from_numpy(place))
        self.vectors.zero_()[: len(chosen), : vectors.shape[1]] = torch.from_numpy(vectors)
        self.error.fill_(error)
        with torch.no_grad():
            self.bias.fill_(NOBODY)[: len(chosen)] = torch.from_numpy(np.log(popularity / popularity.sum()))

    def _clear(self, counts: np.ndarray, noise_std: float) -> np.ndarray:
        """Return the ids, ascending, of the `top` most counted items, less those that are not clear of the noise."""
        most = np.argpartition(-counts, self.top - 1)[: self.top]
        most = most[np.argsort(-counts[most], kind="stable")]
        return np.sort(most[: max(2, int((counts[most] >= self.clear * noise_std).sum()))])

    def forward(self, history: Tensor) -> Tensor:
        """Return the vectors of items (B, T) as (B, T, r): zero for those that are not described."""
        return F.embedding(self.place[history], self.vectors)

    def recent(self, history: Tensor, described: Tensor) -> Tensor:
        """Return the mix of the last items' vectors at each position, (B, T, r)."""
        known = (self.place[history] != self.top).float()
        length, ages = history.shape[1], range(len(self.weights))
        past = torch.stack([F.pad(described, (0, 0, age, 0))[:, :length] for age in ages], 3)  # (B, T, r, recent)
        weight = torch.stack([F.pad(known, (age, 0))[:, :length] * FADE**age for age in ages], 2).sum(2, keepdim=True)
        mixed: Tensor = (past @ self.weights) / (weight + 1e-6).sqrt() @ self.mix
        return mixed

    def loss(self, encoded: Tensor, targets: Tensor) -> Tensor:
        """Return each user's mean cross-entropy over the chosen items, at positions whose next item is chosen."""
        wanted = self.place[targets]  # (B, T)
        loss = F.cross_entropy(
            self._logits(encoded).flatten(0, 1), wanted.flatten(), reduction="none", ignore_index=self.top
        )
        return loss.view(wanted.shape).sum(1) / (wanted != self.top).sum(1).clamp(min=1)

    def scores(self, encoded: Tensor) -> Tensor:
        """Return the scores of all items (B, items) for encoded histories (B, r)."""
        known = self._logits(encoded)
        # The other items come after all described ones, the most popular first.
        tail = self.popularity - self.popularity.max() - 1
        others = known.amin(1, keepdim=True) + tail
        return torch.where(self.place != self.top, known[:, self.place.clamp(max=self.top - 1)], others)

    @property
    def chosen(self) -> Tensor:
        """The ids of the items it describes (top,)."""
        return (self.place != self.top).nonzero().squeeze(1)

    def _logits(self, encoded: Tensor) -> Tensor:
        return F.linear(encoded, self.vectors[:-1], self.bias)


def spectral_vectors(upper: np.ndarray, rank: int, noise_std: float) -> tuple[np.ndarray, float]:
    """Return vectors (n, rank) of mean length 1 whose products are the strictly upper-triangular sums, denoised.

    Also return the mean standard error of their coordinates from the noise.

    The noise has eigenvalues up to 2 · noise_std · √n. Smaller eigenvalues are dropped, larger ones are shrunk to their
    likely size. The sums do not have an item's product with itself: it is computed from the
    vectors, and the vectors are computed again with it, a few times.

    >>> vectors, error = spectral_vectors(np.triu(np.ones((4, 4)), 1), rank=2, noise_std=0.0)
    >>> vectors.shape, error
    ((4, 2), 0.0)
    """
    products = upper + upper.T
    for _ in range(FILLS):
        values, vectors = np.linalg.eigh(products)
        positive = np.maximum(values, 0.0)
        shrunk = np.sqrt(np.maximum(positive**2 - 4 * noise_std**2 * len(values), 0.0))
        leading = np.argsort(-shrunk)[:rank]
        described = vectors[:, leading] * np.sqrt(shrunk[leading])
        np.fill_diagonal(products, np.square(described).sum(1))
    mean = np.linalg.norm(described, axis=1).mean()
    if not (mean > 0 and math.isfinite(mean)):
        return described, 0.0
    # To first order, the error of a vector's coordinate k is the noise of its row along eigenvector k, over √value k.
    left = values[leading][shrunk[leading] > 0]
    return described / mean, float(noise_std * np.sqrt((1 / left).sum() / rank) / mean)
