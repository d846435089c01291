"""Metrics of the lists that users would be shown, whatever was held out: how many items, and how rare."""

from __future__ import annotations

import torch
from torch import Tensor

from dprec.metrics.metric import Metric

# What `ListMetrics.compute` returns, which a recipe's `metrics` may name, at a cutoff: coverage@10.
KINDS = ("coverage", "novelty")


class ListMetrics(Metric):
    """Coverage and novelty of the first k items of all users, with seen items masked and of all items (`/all`).

    Coverage is the share of the catalogue that is in anybody's first k. Novelty is the mean of -log2(share of the
    training events) over all places of all lists: 1 bit more for items that are half as popular. Items without events
    count as having one. The state is a count for each item, so several processes add up.

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
        counts = self.on(scores.device)["counts"]
        unseen = scores.scatter(1, seen, -torch.inf)
        for place, competing in enumerate((unseen, scores)):
            first = competing[:, 1:].topk(min(self.k, scores.shape[1] - 1))
            items = (first.indices + 1)[first.values > -torch.inf]
            counts[place].index_add_(0, items, torch.ones_like(items))  # not of the catalogue's size

    def compute(self) -> dict[str, Tensor]:
        events = self.popularity.double().clamp(min=1).to(self.sums["counts"].device)
        bits = -(events / self.popularity.sum().clamp(min=1)).log2()  # (items,)
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
