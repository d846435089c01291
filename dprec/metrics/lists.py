"""Metrics of the lists that users would be shown: how many items, how rare, and how different from each other."""

from __future__ import annotations

import torch
from torch import Tensor

from dprec.metrics.metric import Metric


def first_items(scores: Tensor, seen: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The first k items of each user, of those not seen and of all: (B, k) each, 0 where there are no more.

    >>> first_items(torch.tensor([[0.0, 0.9, 0.5, 0.7]]), torch.tensor([[1, 0]]), k=3)
    (tensor([[3, 2, 0]]), tensor([[1, 3, 2]]))
    """
    unseen = scores.scatter(1, seen, -torch.inf)
    first = [competing[:, 1:].topk(min(k, scores.shape[1] - 1)) for competing in (unseen, scores)]
    found = [torch.where(each.values > -torch.inf, each.indices + 1, 0) for each in first]
    return found[0], found[1]


def bits_of(popularity: Tensor) -> Tensor:
    """How rare each item is (items,): -log2 of its share of the events; items without events count as having one."""
    return -(popularity.double().clamp(min=1) / popularity.sum().clamp(min=1)).log2()


def novelty_of(lists: Tensor, bits: Tensor) -> Tensor:
    """Novelty of each list (B,): the mean of `bits_of` its items.

    >>> novelty_of(torch.tensor([[1, 2], [1, 0]]), torch.tensor([0.0, 1, 3]))
    tensor([2., 1.])
    """
    real = lists != 0
    return (bits[lists] * real).sum(1) / real.sum(1).clamp(min=1)


def diversity_of(lists: Tensor, features: Tensor) -> Tensor:
    """Intra-list diversity (B,): of how many values of features a pair of a list's items has one alone, on average.

    Args:
        lists: (B, k) items, 0 where there is none.
        features: (items, S) the numbers of each item's values, from 1; 0 where an item has fewer.

    >>> features = torch.tensor([[0, 0], [1, 2], [1, 3], [1, 2]])
    >>> diversity_of(torch.tensor([[1, 2], [1, 3], [1, 0]]), features)
    tensor([2., 0., 0.], dtype=torch.float64)
    """
    values = features.long().sort(dim=1).values
    values[:, 1:][values[:, 1:] == values[:, :-1]] = 0  # a value counts once
    held = values[lists].flatten(1)  # (B, k S)
    counts = torch.zeros(len(lists), int(values.max()) + 1, dtype=torch.int64, device=lists.device)
    counts.scatter_add_(1, held, torch.ones_like(held))
    size = (lists != 0).sum(1, keepdim=True)
    apart = (counts * (size - counts))[:, 1:].sum(1)  # pairs of which one has the value
    return 2 * apart.double() / (size * (size - 1)).squeeze(1).clamp(min=1)


# Beside those of `GAINS`, the metrics that a recipe's `metrics` may name, at a cutoff: coverage@10.
KINDS = ("coverage", "novelty", "diversity", "serendipity")


class ListMetrics(Metric):
    """Coverage and novelty of the first k items of all users, with seen items masked and of all items (`/all`).

    Coverage is the share of the catalogue that is in at least one user's first k. Novelty is the mean of -log2(share of
    the training events) over all places of all lists: 1 bit more for items that are half as popular. Items without
    events count as having one. The state is a count for each item, so several processes add up.

    Args:
        k: how many of the first items count.
        popularity: (items,) training events of each item id, 0 for padding.

    >>> import torch
    >>> from dprec.metrics import ListMetrics
    >>> metrics = ListMetrics(k=1, popularity=torch.tensor([0, 4, 2, 2]))
    >>> metrics.update(torch.tensor([[0.0, 0.9, 0.5, 0.7], [0.0, 0.9, 0.5, 0.7]]), torch.tensor([[1], [0]]))
    >>> {name: round(float(value), 4) for name, value in metrics.compute().items()}
    {'coverage@1': 0.6667, 'novelty@1': 1.5, 'coverage@1/all': 0.3333, 'novelty@1/all': 1.0}
    """

    def __init__(self, k: int, popularity: Tensor) -> None:
        self.k = k
        self.popularity = popularity  # (items,) training events of each item, 0 for padding
        # (2, items): in how many lists an item is, of unseen items and of all
        self.sums = {"counts": torch.zeros(2, len(popularity), dtype=torch.int64)}

    def update(self, scores: Tensor, seen: Tensor) -> None:
        """Add users by their scores (B, items); column 0 is padding, as in `seen` (B, S)."""
        self.enter(*first_items(scores, seen, self.k))

    def enter(self, unseen: Tensor, everything: Tensor) -> None:
        """Add users by their `first_items`."""
        counts = self.on(unseen.device)["counts"]
        for place, lists in enumerate((unseen, everything)):
            items = lists[lists != 0]
            counts[place].index_add_(0, items, torch.ones_like(items))  # not of the catalogue's size

    def compute(self) -> dict[str, Tensor]:
        bits = bits_of(self.popularity).to(self.sums["counts"].device)  # (items,)
        found: dict[str, Tensor] = {}
        for which, counts in zip(("", "/all"), self.sums["counts"], strict=True):
            found[f"coverage@{self.k}{which}"] = (counts > 0).sum() / (len(counts) - 1)
            found[f"novelty@{self.k}{which}"] = (counts * bits).sum() / counts.sum()
        return found

    @property
    def distinct(self) -> int:
        """How many items are in anybody's first k, of those that the user has not seen."""
        return int((self.sums["counts"][0] > 0).sum())

    @property
    def places(self) -> int:
        """How many places these lists have: fewer than k where a user has seen nearly all items."""
        return int(self.sums["counts"][0].sum())
