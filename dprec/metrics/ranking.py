"""Metrics of rankings over all items, from the ranks of held-out items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from dprec.errors import UserError
from dprec.metrics.metric import Metric


def ndcg_at(ranks: Tensor, k: int = 10) -> Tensor:
    """NDCG@k: the sum of 1 / log2(rank + 2) over held-out items within the first k, divided by the best such sum.

    Args:
        ranks: (B,) the rank of each user's held-out item, 0 the best; or (B, K) of several, as `target_ranks` returns
            them.
        k: how many of the first items count.

    >>> import torch
    >>> from dprec.metrics import ndcg_at
    >>> from dprec.metrics.ranking import NOWHERE
    >>> ndcg_at(torch.tensor([0, 2, 10]))
    tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)
    >>> ndcg_at(torch.tensor([[0, 1, 2], [0, 12, NOWHERE]])).round(decimals=4)
    tensor([1.0000, 0.6131], dtype=torch.float64)
    """
    ranks = _columns(ranks)
    gains = torch.where(ranks < k, 1 / torch.log2(ranks.double() + 2), 0.0).sum(1)
    k = min(k, ranks.shape[1])  # more than are held out are never found
    best = (1 / torch.log2(torch.arange(k, device=ranks.device).double() + 2)).cumsum(0)  # of 1, 2, ... items
    return gains / best[_held_out(ranks).clamp(max=k) - 1]


def hit_at(ranks: Tensor, k: int = 10) -> Tensor:
    """HIT@k: 1 where a held-out item is among the first k, else 0.

    Args:
        ranks: (B,) the rank of each user's held-out item, 0 the best; or (B, K) of several, as `target_ranks` returns
            them.
        k: how many of the first items count.

    >>> import torch
    >>> from dprec.metrics import hit_at
    >>> hit_at(torch.tensor([0, 2, 10]))
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    return (_columns(ranks) < k).any(1).double()


def precision_at(ranks: Tensor, k: int = 10) -> Tensor:
    """Precision@k: the share of the first k that is held out.

    Args:
        ranks: (B,) the rank of each user's held-out item, 0 the best; or (B, K) of several, as `target_ranks` returns
            them.
        k: how many of the first items count.

    >>> import torch
    >>> from dprec.metrics import precision_at
    >>> precision_at(torch.tensor([0, 2, 10]), k=5)
    tensor([0.2000, 0.2000, 0.0000], dtype=torch.float64)
    """
    return (_columns(ranks) < k).sum(1).double() / k


def recall_at(ranks: Tensor, k: int = 10, capped: bool = False) -> Tensor:
    """Recall@k: the share of the user's held-out items that is among the first k, also where k is below their number.

    Args:
        ranks: (B,) the rank of each user's held-out item, 0 the best; or (B, K) of several, as `target_ranks` returns
            them.
        k: how many of the first items count.
        capped: divide by k where more than k are held out, as Mult-VAE's code does.

    >>> import torch
    >>> from dprec.metrics import recall_at
    >>> from dprec.metrics.ranking import NOWHERE
    >>> recall_at(torch.tensor([[0, 4, 12], [3, 20, NOWHERE]])).round(decimals=4)
    tensor([0.6667, 0.5000], dtype=torch.float64)
    """
    ranks = _columns(ranks)
    held_out = _held_out(ranks)
    return (ranks < k).sum(1).double() / (held_out.clamp(max=k) if capped else held_out)


def mrr_at(ranks: Tensor, k: int = 10) -> Tensor:
    """MRR@k: 1 / place of the first held-out item, counted from 1, within the first k, else 0.

    Args:
        ranks: (B,) the rank of each user's held-out item, 0 the best; or (B, K) of several, as `target_ranks` returns
            them.
        k: how many of the first items count.

    >>> import torch
    >>> from dprec.metrics import mrr_at
    >>> mrr_at(torch.tensor([0, 3, 10]))
    tensor([1.0000, 0.2500, 0.0000], dtype=torch.float64)
    """
    first = _columns(ranks).min(1).values
    return torch.where(first < k, 1 / (first.double() + 1), 0.0)


def map_at(ranks: Tensor, k: int = 10) -> Tensor:
    """MAP@k: the sum, over held-out items within the first k, of the precision at their place, / held-out items.

    Args:
        ranks: (B,) the rank of each user's held-out item, 0 the best; or (B, K) of several, as `target_ranks` returns
            them.
        k: how many of the first items count.

    >>> import torch
    >>> from dprec.metrics import map_at
    >>> map_at(torch.tensor([[0, 3, 12]])).round(decimals=4)
    tensor([0.5000], dtype=torch.float64)
    """
    ranks = _columns(ranks).sort(dim=1).values
    precision = torch.arange(1, ranks.shape[1] + 1, device=ranks.device) / (ranks.double() + 1)
    return torch.where(ranks < k, precision, 0.0).sum(1) / _held_out(ranks)


def serendipity_at(ranks: Tensor, popularity: Tensor, items: int, k: int = 10) -> Tensor:
    """Serendipity@k: by how many places held-out items within the first k stand before their place by popularity.

    The sum of these places is divided by k and by the number of items; an item that stands no better adds 0.

    Args:
        ranks: (B, K) the rank of each held-out item, 0 the best.
        popularity: (B, K) the rank of the same items by popularity; equally popular ones share one (`dense_ranks`).
        items: of the catalogue.
        k: how many of the first items count.

    >>> import torch
    >>> from dprec.metrics import serendipity_at
    >>> serendipity_at(torch.tensor([[0], [3], [12]]), torch.tensor([[40], [2], [90]]), items=100)
    tensor([0.0400, 0.0000, 0.0000], dtype=torch.float64)
    """
    return torch.where(ranks < k, (popularity - ranks).clamp(min=0), 0).sum(1).double() / (k * items)


def dense_ranks(popularity: Tensor) -> Tensor:
    """The rank of each item by popularity (items,), 0 the best: equal counts share one, those of 0 come last.

    >>> dense_ranks(torch.tensor([0.0, 5, 7, 5, 0]))
    tensor([4, 1, 0, 1, 4])
    """
    _, place = torch.unique(-popularity, return_inverse=True)
    return torch.where(popularity > 0, place, len(popularity) - 1)


def _columns(ranks: Tensor) -> Tensor:
    return ranks[:, None] if ranks.dim() == 1 else ranks


def _held_out(ranks: Tensor) -> Tensor:
    return (ranks != NOWHERE).sum(1)


# The metrics that a recipe's `metrics` may name, at a cutoff: ndcg@10. Training logs the default kinds of
# `RankingMetrics` alone.
GAINS = {"ndcg": ndcg_at, "hit": hit_at, "precision": precision_at, "recall": recall_at, "mrr": mrr_at, "map": map_at}
# With `data.protocol: strong`.
STRONG_GAINS: dict[str, Callable[[Tensor, int], Tensor]] = {**GAINS, "recall": partial(recall_at, capped=True)}


class RankingMetrics(Metric):
    """Means over users at k under both protocols in one pass: seen items masked, and all items (`/all`).

    Several processes give the mean over all users, not the mean of their means.

    >>> import torch
    >>> from dprec.metrics import RankingMetrics
    >>> metrics = RankingMetrics(k=10)
    >>> metrics.update(torch.tensor([[0.0, 0.9, 0.5, 0.7]]), torch.tensor([2]), torch.tensor([[1, 3]]))
    >>> {name: float(value) for name, value in metrics.compute().items()}
    {'ndcg@10': 1.0, 'hit@10': 1.0, 'ndcg@10/all': 0.5, 'hit@10/all': 1.0}

    Args:
        k: how many of the first items count.
        kinds: which of ndcg, hit, precision, recall, mrr and map.
    """

    def __init__(self, k: int = 10, kinds: Sequence[str] = ("ndcg", "hit")) -> None:
        self.k = k
        self.kinds = tuple(kinds)
        self.sums = {
            "gains": torch.zeros(2 * len(self.kinds), dtype=torch.float64),
            "users": torch.zeros((), dtype=torch.int64),
        }

    def update(self, scores: Tensor, target: Tensor, seen: Tensor) -> None:
        self.enter(*both_ranks(scores, target, seen))

    def enter(self, everyone: Tensor, unseen: Tensor) -> None:
        """Add users by their ranks among all items and among unseen items."""
        gains = torch.stack([GAINS[kind](ranks, self.k) for ranks in (unseen, everyone) for kind in self.kinds])
        sums = self.on(gains.device)
        sums["gains"] += gains.sum(1)
        sums["users"] += len(everyone)

    @property
    def names(self) -> list[str]:
        return [f"{kind}@{self.k}{which}" for which in ("", "/all") for kind in self.kinds]

    def compute(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.sums["gains"] / self.sums["users"], strict=True))


NOWHERE = 2**62  # the rank of a target that is only padding


def target_ranks(scores: Tensor, target: Tensor, seen: Tensor | None = None) -> Tensor:
    """Rank of each user's target among all items, 0 the best: how many other items score at least as high.

    Ties count against the model, so a constant score gets the last rank. Column 0 (padding) never competes.

    Of a user with several targets, the ranks are those of one list: ascending, with ties against all targets, and
    `NOWHERE` for padding. Raises UserError if a score in another column is NaN or infinite.

    Args:
        scores: (B, items) a score for every item id.
        target: (B,) the held-out item of each user; or (B, K) several, all different and padded with 0.
        seen: (B, S) items that do not compete unless they are the target, padded with 0, repeats allowed. None: all
            compete.

    >>> import torch
    >>> from dprec.metrics import target_ranks
    >>> scores = torch.tensor([[0.0, 0.9, 0.5, 0.7, 0.5]])
    >>> target_ranks(scores, target=torch.tensor([2]))
    tensor([3])
    >>> target_ranks(scores, target=torch.tensor([2]), seen=torch.tensor([[1, 0, 1]]))
    tensor([2])
    >>> target_ranks(scores, target=torch.tensor([[2, 1]]))
    tensor([[0, 3]])
    """
    return both_ranks(scores, target, seen)[1]


def both_ranks(scores: Tensor, target: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ranks among all items and among those not seen, from one pass over the scores and no copy of them."""
    _check(scores, target, seen)
    if target.dim() == 2:
        return _several_ranks(scores, target, seen)
    own = scores.gather(1, target[:, None])  # (B, 1)
    everyone = (scores[:, 1:] >= own).sum(1) - 1  # the target ties with itself
    if seen is None or seen.shape[1] == 0:
        return everyone, everyone
    seen, competing = _distinct(seen, target[:, None])
    return everyone, everyone - (competing & (scores.gather(1, seen) >= own)).sum(1)


def by_rank(scores: Tensor, target: Tensor) -> Tensor:
    """Held-out items (B, K) in the order of their ranks, as `both_ranks` returns these; padding comes last.

    >>> by_rank(torch.tensor([[0.0, 0.9, 0.5, 0.7]]), torch.tensor([[2, 1, 0]]))
    tensor([[1, 2, 0]])
    """
    if target.dim() == 1:
        return target[:, None]
    own = scores.gather(1, target).double().masked_fill(target == 0, -torch.inf)
    return target.gather(1, own.argsort(dim=1, descending=True, stable=True))


def _several_ranks(scores: Tensor, target: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    own = scores.gather(1, target).masked_fill(target == 0, torch.inf).sort(dim=1).values.contiguous()  # ascending
    theirs = scores.gather(1, target).masked_fill(target == 0, -torch.inf)
    everyone = _reaching(own, scores[:, 1:]) - _reaching(own, theirs)  # the others that score at least as high
    unseen = everyone
    if seen is not None and seen.shape[1]:
        seen, competing = _distinct(seen, target)
        unseen = everyone - _reaching(own, scores.gather(1, seen).masked_fill(~competing, -torch.inf))
    return _listed(everyone, target), _listed(unseen, target)


def _reaching(own: Tensor, scores: Tensor) -> Tensor:
    """How many scores of each row (B, V) are at least as high as each of `own` (B, K), ascending: (B, K)."""
    reached = torch.searchsorted(own, scores.contiguous(), right=True)  # how many of `own` a score reaches
    counts = torch.zeros(len(own), own.shape[1] + 1, dtype=torch.int64, device=own.device)
    counts.scatter_add_(1, reached, torch.ones((), dtype=torch.int64, device=own.device).expand_as(reached))
    return counts.flip(1).cumsum(1).flip(1)[:, 1:]


def _listed(others: Tensor, target: Tensor) -> Tensor:
    """Ranks in one list, ascending, from how many items other than targets are ahead of each, the best target last."""
    ranks = others.flip(1)
    padding = (target == 0).sum(1, keepdim=True)  # first, since they have infinite scores
    place = torch.arange(target.shape[1], device=target.device) - padding
    ranks = torch.where(place < 0, NOWHERE, ranks + place)
    return ranks.sort(dim=1).values


def _distinct(seen: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Seen items (B, S), and which of them count: each once, without padding and targets (B, K)."""
    seen = seen.sort(dim=1).values  # repeats become neighbours
    counts = seen != 0
    for column in target.T:
        counts &= seen != column[:, None]
    counts[:, 1:] &= seen[:, 1:] != seen[:, :-1]
    return seen, counts


def _check(scores: Tensor, target: Tensor, seen: Tensor | None) -> None:
    if scores.dim() != 2 or target.shape[:1] != scores.shape[:1] or target.dim() > 2:
        raise ValueError(f"scores {tuple(scores.shape)} and target {tuple(target.shape)}: want (B, items) and (B,)")
    if seen is not None and (seen.dim() != 2 or len(seen) != len(scores)):
        raise ValueError(f"seen is {tuple(seen.shape)}: want ({len(scores)}, S)")
    items = scores.shape[1]
    if target.dim() == 2 and target.numel() and not (target.max(1).values > 0).all():
        raise UserError("a user has no held-out item: leave users without a target out")
    least = 1 if target.dim() == 1 else 0
    if target.numel() and not (int(target.min()) >= least and int(target.max()) < items):
        raise UserError(f"a target lies outside the catalogue of {items - 1} items: evaluate on the model's own data")
    if seen is not None and seen.numel() and not (int(seen.min()) >= 0 and int(seen.max()) < items):
        raise UserError(f"a seen item lies outside the catalogue of {items - 1}: evaluate on the model's own data")
    # The sum is not finite if a term is not. It reads the scores once and allocates nothing of their size.
    if not torch.isfinite(scores[:, 1:].sum(dtype=torch.float64)):
        users = (~torch.isfinite(scores[:, 1:])).any(1).sum().item()
        if users:
            raise UserError(
                f"scores are NaN or infinite for {users} of {len(scores)} users and cannot be ranked: "
                "lower the learning rate or check the model"
            )
