"""The most popular items, each with a vector that is fixed during training, and their ranking."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import ndtr
from torch import Tensor, nn

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.logs.histories import Histories
from dprec.models.learning.learner import refuse_unless

NOBODY = -1e4  # bias of an unused place: its share of a softmax, and so its gradient, is 0
FLOOR = 1.0  # users' worth of popularity that every item has


class DescribedItems(nn.Module):
    """The items with the largest counts in a first release; a subclass computes their vectors from further releases.

    A subclass has a trained `bias` (top,), and chooses its place among the parameters.
    """

    bias: nn.Parameter

    @property
    @abstractmethod
    def releases(self) -> tuple[Release, ...]:
        """All releases that it needs; the first is the counts of items."""

    @abstractmethod
    def prepare(self, histories: Histories, sums: ExactSums) -> None:
        """Choose the items and describe them, from sums over all users."""

    def __init__(
        self, items: int, top: int, rank: int, clear: float, frequencies: Release, noise_share: float = 1.0
    ) -> None:
        super().__init__()
        refuse_unless(top >= 2, "top", top, "2 or more")
        refuse_unless(rank >= 1, "rank", rank, "1 or more")
        refuse_unless(0 <= clear < math.inf, "clear", clear, "0 or more")
        self.items = items
        self.top = min(top, items - 1)
        self.rank = min(rank, self.top)
        refuse_unless(0 < noise_share <= 1, "noise_share", noise_share, "a number above 0, up to 1")
        self.clear, self.noise_share = clear, noise_share
        self.frequencies = frequencies
        self.popularity: Tensor
        self.place: Tensor
        self.vectors: Tensor
        self.register_buffer("popularity", torch.zeros(items))  # as released
        self.register_buffer("place", torch.full((items,), self.top))  # among the chosen; `top` for the others
        self.register_buffer("vectors", torch.zeros(self.top + 1, self.rank))  # the last row for the others

    def choose(self, histories: Histories, sums: ExactSums) -> tuple[np.ndarray, np.ndarray]:
        """Choose the items; return each item's place (items,), and the popularity of the n chosen ones (n,)."""
        counts, std = self.count(histories, sums)
        counts[0] = -np.inf
        chosen = self._clear(counts, std)
        place = np.full(self.items, self.top)
        place[chosen] = np.arange(len(chosen))
        popularity = np.maximum(counts[chosen], max(FLOOR, std))
        counts[0] = 0.0
        self.popularity.copy_(torch.from_numpy(counts))
        self.place.copy_(torch.from_numpy(place))
        with torch.no_grad():
            self.bias.fill_(NOBODY)[: len(chosen)] = torch.from_numpy(np.log(popularity / popularity.sum()))
        return place, popularity

    def count(self, histories: Histories, sums: ExactSums) -> tuple[np.ndarray, float]:
        """Return the released number of users of each item (items,), and its noise."""
        counts = sums(self.frequencies, self.items, histories.users, item_counts(histories))
        return counts, sums.std(self.frequencies)

    def describe(self, vectors: np.ndarray) -> None:
        """Set the vectors of the n chosen items, (n, r) of at most `rank` numbers."""
        self.vectors.zero_()[: len(vectors), : vectors.shape[1]] = torch.from_numpy(vectors)

    def forward(self, history: Tensor) -> Tensor:
        """Return the vectors of items (B, T) as (B, T, r): zero for those that are not described."""
        return F.embedding(self.place[history], self.vectors)

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
        others = known.amin(1, keepdim=True) + self._tail
        return torch.where(self.place != self.top, known[:, self.place.clamp(max=self.top - 1)], others)

    def item_vectors(self) -> Tensor:
        """Return vectors (items, r + 2) whose products with `user_vectors` are the scores.

        A described item has its vector, its bias and 0; another one has zeros, its `_tail` and 1.
        """
        known = torch.cat([self.compared, self.bias[:, None], torch.zeros_like(self.bias)[:, None]], 1)
        others = torch.zeros(self.items, known.shape[1], device=known.device)
        others[:, -2], others[:, -1] = self._tail, 1.0
        return torch.where(self.place[:, None] != self.top, known[self.place.clamp(max=self.top - 1)], others)

    def user_vectors(self, encoded: Tensor) -> Tensor:
        """Return encoded histories (B, r) with 1 and the lowest score of a described item: (B, r + 2)."""
        return torch.cat([encoded, torch.ones_like(encoded[:, :1]), self._logits(encoded).amin(1, keepdim=True)], 1)

    @property
    def _tail(self) -> Tensor:
        """How far each other item scores below the lowest described one (items,): popular items less far."""
        return self.popularity - self.popularity.max() - 1

    @property
    def chosen(self) -> Tensor:
        """The ids of the items it describes (top,)."""
        return (self.place != self.top).nonzero().squeeze(1)

    @property
    def compared(self) -> Tensor:
        """The vectors (top, r) that an encoded history is compared with."""
        return self.vectors[:-1]

    def _logits(self, encoded: Tensor) -> Tensor:
        return F.linear(encoded, self.compared, self.bias)

    def _clear(self, counts: np.ndarray, noise_std: float) -> np.ndarray:
        """Return the ids, ascending, of the `top` most counted items, without those not clear of the noise."""
        most = np.argsort(-counts, kind="stable")[: self.top]
        fits = counts[most] >= self.clear * noise_std
        if noise_std and self.noise_share < 1:
            noise_alone = (self.items - 1) * (1 - ndtr(counts[most] / noise_std))  # expected if no item had users
            fits &= noise_alone <= self.noise_share * np.arange(1, len(most) + 1)
        return np.sort(most[: max(2, int(np.flatnonzero(fits).max(initial=-1)) + 1)])


# Sums over users' histories: items that a user saw, and pairs that a user saw near each other.


PAIRS = 1 << 22  # in one portion; limits the memory


def item_counts(histories: Histories) -> Iterator[Portion]:
    """Yield every item that a user saw, once; the entry of item i is number i."""
    for users, _, items in user_events(histories, each=1):
        met = np.unique(np.stack([users, items], 1), axis=0)
        yield Portion(met[:, 0], met[:, 1], np.ones(len(met)))


def pair_weights(
    histories: Histories, place: np.ndarray, weight: np.ndarray, window: int, decay: float
) -> Iterator[Portion]:
    """Yield unordered pairs of chosen items near each other: the entry of places i < j of n is number i * n + j.

    `place` (items,) is the place of an item among the chosen ones, n for other items; `weight` (n,) scales it. A pair
    at distance k counts decay^(k-1), up to distance `window` among the chosen items of a user.
    """
    chosen = len(weight)
    for users, places, _ in user_events(histories, window, place, chosen):
        keys, owners, values = [], [], []
        for distance in range(1, min(window, len(users) - 1) + 1):
            same = users[distance:] == users[:-distance]
            left, right = places[:-distance][same], places[distance:][same]
            apart = left != right
            low, high = np.minimum(left, right)[apart], np.maximum(left, right)[apart]
            keys.append(low * chosen + high)
            owners.append(users[distance:][same][apart])
            values.append(decay ** (distance - 1) * weight[low] * weight[high])
        if keys:
            yield Portion(np.concatenate(owners), np.concatenate(keys), np.concatenate(values))


def user_events(
    histories: Histories, each: int, place: np.ndarray | None = None, chosen: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield events of whole users as (user, place, item); `each` times their number fits into a portion."""
    for users, found in histories.portions(max(1, PAIRS // each)):
        items = found.astype(np.int64)
        places = items if place is None else place[items]
        keep = slice(None) if place is None else places < chosen
        yield users[keep], places[keep], items[keep]
