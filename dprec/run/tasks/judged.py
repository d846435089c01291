"""Measurements of each user's ranking, the groups of users, and the popularity baseline."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dprec.errors import UserError
from dprec.metrics.lists import KINDS, bits_of, diversity_of, novelty_of
from dprec.metrics.ranking import GAINS, NOWHERE, STRONG_GAINS, both_ranks, by_rank, dense_ranks, serendipity_at

PROTOCOLS = {"": "seen items masked", "/all": "all items"}
EVERYBODY = "all"
# By the popularity of the held-out item, and by the number of events before it.
BY = {"by_popularity": ("head", "torso", "tail"), "by_length": ("short", "medium", "long")}
LISTS = ("novelty", "diversity")  # depend on a user's list alone
GROUPS = (EVERYBODY, *BY["by_popularity"], *BY["by_length"])


def gains_of(data: Any) -> Mapping[str, Callable[[Tensor, int], Tensor]]:
    """Return the metrics of ranks by their kinds, normalised as in the data's protocol."""
    return STRONG_GAINS if getattr(getattr(data, "protocol", None), "strong", False) else GAINS


class Popular:
    """Ranks by items' training events; items with equal counts get different places, as in a list.

    Ties count against a model, so a baseline with many ties would look worse than it is.

    >>> Popular(torch.tensor([0.0, 5.0, 7.0, 5.0])).order
    tensor([ 0., -1., -0., -2.], dtype=torch.float64)
    """

    def __init__(self, popularity: Tensor) -> None:
        best = popularity[1:].argsort(descending=True, stable=True)  # (V,)
        self.order = torch.zeros(len(popularity), dtype=torch.float64, device=best.device)
        self.order[best + 1] = -torch.arange(len(best), dtype=torch.float64, device=best.device)

    def scores(self, batch: Any) -> Tensor:
        return self.order.expand(len(batch), -1)


def thirds(popularity: Tensor) -> Tensor:
    """Divide items, from the most popular on, into groups 0, 1, 2 with about a third of all events each: (items,).

    An item is in the group of its first event. The padding is in none: -1.

    >>> thirds(torch.tensor([0.0, 2.0, 9.0, 5.0, 4.0, 7.0]))
    tensor([-1,  2,  0,  1,  2,  1])
    """
    order = popularity.argsort(descending=True, stable=True)
    events = popularity[order].double()
    before = events.cumsum(0) - events
    group = torch.empty_like(order)
    group[order] = (3 * before / events.sum().clamp(min=1)).long().clamp(max=2)
    group[0] = -1
    return group


class UserNumbers:
    """Each user's numbers, whose means are reported: over all held-out items, and over those of each group.

    Args:
        metrics: names such as ndcg@10.
        popularity: (items,) training events of each item.
        lengths: (users,) events of each user of training.
        features: (items, S) the numbers of each item's public features, if diversity is asked for.
        gains: the metrics of ranks by their kinds.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        popularity: Tensor,
        lengths: np.ndarray,
        features: Tensor | None,
        gains: Mapping[str, Callable[[Tensor, int], Tensor]] = GAINS,
    ) -> None:
        asked = [(metric.partition("@")[0], cutoff(metric)) for metric in metrics]
        self.asked = [(kind, k) for kind, k in asked if kind != "coverage"]
        self.listed = {k for kind, k in asked if kind in (*LISTS, "coverage")}
        self.names = [f"{kind}@{k}{suffix}" for suffix in PROTOCOLS for kind, k in self.asked]
        self.items = len(popularity) - 1
        self.ranks, self.bits, self.thirds = dense_ranks(popularity), bits_of(popularity), thirds(popularity)
        cuts = np.quantile(lengths, (1 / 3, 2 / 3), method="lower")
        self.cuts = torch.from_numpy(cuts).to(popularity.device)
        self.features, self.gains = features, gains

    def groups(self, batch: Any) -> Tensor:
        """Return (B, groups) bool: whether each user is in each of `GROUPS`."""
        place = self.thirds[batch.target.view(len(batch), -1)]
        length = torch.bucketize((batch.seen != 0).sum(1), self.cuts)
        of_items = [(place == third).any(1) for third in range(3)]
        return torch.stack([length >= 0, *of_items, *(length == third for third in range(3))], dim=1)

    def about(self, group: str) -> dict[str, Any]:
        """Return what defines a group: its items, or the least and the most events before the held-out ones."""
        if group in BY["by_popularity"]:
            return {"items": int((self.thirds == BY["by_popularity"].index(group)).sum())}
        place, cuts = BY["by_length"].index(group), self.cuts.tolist()
        return {"events": [[0, cuts[0] + 1, cuts[1] + 1][place], [*cuts, None][place]]}

    def of(self, scores: Tensor, batch: Any, lists: Mapping[int, tuple[Tensor, Tensor]]) -> Tensor:
        """Return each user's numbers by group, (B, groups, names)."""
        target = by_rank(scores, batch.target)
        everyone, unseen = both_ranks(scores, batch.target, batch.seen)
        columns = []
        for which, ranks in enumerate((unseen.view(target.shape), everyone.view(target.shape))):
            parts = [ranks, *(ranks.masked_fill(self.thirds[target] != third, NOWHERE) for third in range(3))]
            for kind, k in self.asked:
                if kind in LISTS:
                    whole = self._of_list(kind, lists[k][which])
                    each = [whole] * len(BY["by_popularity"])
                else:
                    whole, *each = [self._of_ranks(kind, k, part, target) for part in parts]
                columns.append(torch.stack([whole, *each, whole, whole, whole], dim=1))
        return torch.stack(columns, dim=2) if columns else scores.new_zeros(len(scores), len(GROUPS), 0)

    def _of_list(self, kind: str, items: Tensor) -> Tensor:
        """Return a metric of each user's list (B, k): (B,) float64."""
        if kind == "novelty":
            return novelty_of(items, self.bits)
        assert self.features is not None
        return diversity_of(items, self.features)

    def _of_ranks(self, kind: str, k: int, ranks: Tensor, target: Tensor) -> Tensor:
        """Return a metric of each user's held-out items (B, K): (B,) float64."""
        if kind == "serendipity":
            return serendipity_at(ranks, self.ranks[target], self.items, k)
        return self.gains[kind](ranks, k)


def about(group: str, figures: Mapping[str, Any]) -> str:
    """Describe a group in a few words.

    >>> about("head", {"items": 12}), about("medium", {"events": [4, 9]}), about("long", {"events": [10, None]})
    ('head: 12 items', 'medium: 4 to 9 events', 'long: from 10 events')
    """
    if "items" in figures:
        return f"{group}: {figures['items']:,} items"
    least, most = figures["events"]
    return f"{group}: from {least:,} events" if most is None else f"{group}: {least:,} to {most:,} events"


def cutoff(metric: str) -> int:
    """The k of a metric such as ndcg@k."""
    kinds = (*GAINS, *KINDS)
    found = re.fullmatch(rf"({'|'.join(kinds)})@([1-9]\d*)", metric)
    if found is None:
        raise UserError(f"unknown metric {metric!r}: give {', '.join(f'{name}@k' for name in kinds)}, such as ndcg@10")
    if len(found[2]) > 9:
        raise UserError(f"{metric}: no list is so long: give a smaller number")
    return int(found[2])
