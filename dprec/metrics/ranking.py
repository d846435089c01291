"""Full-ranking metrics of next-item recommendation: NDCG, HIT, MRR, precision, recall at k of a user's held-out item.

With one held-out item recall@k is HIT@k, and precision@k is HIT@k / k: both exist because papers report them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from dprec.errors import UserError


def target_ranks(scores: Tensor, target: Tensor, seen: Tensor | None = None) -> Tensor:
    """Rank of each user's target among all items, 0 the best: how many other items score at least as high.

    Ties count against the model, so a constant score gets the last rank. Column 0 (padding) never competes. Items in
    `seen` (padded with 0, repeats allowed) do not compete either, except the target.
    Raises UserError if a score in another column is NaN or infinite.

    >>> scores = torch.tensor([[0.0, 0.9, 0.5, 0.7, 0.5]])
    >>> target_ranks(scores, target=torch.tensor([2]))
    tensor([3])
    >>> target_ranks(scores, target=torch.tensor([2]), seen=torch.tensor([[1, 0, 1]]))
    tensor([2])
    """
    return both_ranks(scores, target, seen)[1]


def ndcg_at(ranks: Tensor, k: int = 10) -> Tensor:
    """NDCG@k of one relevant item: 1 / log2(rank + 2) within the first k, else 0; one value per user.

    >>> ndcg_at(torch.tensor([0, 2, 10]))
    tensor([1.0000, 0.5000, 0.0000], dtype=torch.float64)
    """
    return torch.where(ranks < k, 1 / torch.log2(ranks.double() + 2), 0.0)


def hit_at(ranks: Tensor, k: int = 10) -> Tensor:
    """HIT@k: 1 where the target is among the first k, else 0; one value per user.

    >>> hit_at(torch.tensor([0, 2, 10]))
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    return (ranks < k).double()


def precision_at(ranks: Tensor, k: int = 10) -> Tensor:
    """Precision@k: the share of the first k that is the target, so 1 / k or 0; one value per user.

    >>> precision_at(torch.tensor([0, 2, 10]), k=5)
    tensor([0.2000, 0.2000, 0.0000], dtype=torch.float64)
    """
    return hit_at(ranks, k) / k


def mrr_at(ranks: Tensor, k: int = 10) -> Tensor:
    """MRR@k: 1 / place of the target, counted from 1, within the first k, else 0; one value per user.

    >>> mrr_at(torch.tensor([0, 3, 10]))
    tensor([1.0000, 0.2500, 0.0000], dtype=torch.float64)
    """
    return torch.where(ranks < k, 1 / (ranks.double() + 1), 0.0)


# Recall@k is the share of a user's held-out items among the first k: 1 or 0 for one item.
# The metrics that a recipe's `metrics` may name, at a cutoff: ndcg@10. Training logs the default kinds of
# `RankingMetrics` alone.
GAINS = {"ndcg": ndcg_at, "hit": hit_at, "precision": precision_at, "recall": hit_at, "mrr": mrr_at}


def both_ranks(scores: Tensor, target: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ranks among all items and among those not seen, from one pass over the scores and no copy of them."""
    _check(scores, target, seen)
    own = scores.gather(1, target[:, None])  # (B, 1)
    everyone = (scores[:, 1:] >= own).sum(1) - 1  # the target ties with itself
    if seen is None or seen.shape[1] == 0:
        return everyone, everyone
    return everyone, everyone - _ahead(seen, target, lambda items: scores.gather(1, items) >= own)


def ranks_in_one_order(places: Tensor, target: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """`both_ranks` for the same order for all users: `places` (items,) has the place of each item, 0 for the first.

    >>> places = torch.tensor([-1, 0, 3, 1, 2])
    >>> ranks_in_one_order(places, target=torch.tensor([2]), seen=torch.tensor([[1, 0, 1]]))
    (tensor([3]), tensor([2]))
    """
    own = places[target]
    return own, own - _ahead(seen, target, lambda items: places[items] < own[:, None])


def _ahead(seen: Tensor, target: Tensor, before: Callable[[Tensor], Tensor]) -> Tensor:
    """How many distinct seen items (B, S) except the target come `before` it."""
    seen = seen.sort(dim=1).values  # repeats become neighbours
    counts = (seen != 0) & (seen != target[:, None])
    counts[:, 1:] &= seen[:, 1:] != seen[:, :-1]
    return (counts & before(seen)).sum(1)


def _check(scores: Tensor, target: Tensor, seen: Tensor | None) -> None:
    if scores.dim() != 2 or target.shape != scores.shape[:1]:
        raise ValueError(f"scores {tuple(scores.shape)} and target {tuple(target.shape)}: want (B, items) and (B,)")
    if seen is not None and (seen.dim() != 2 or len(seen) != len(scores)):
        raise ValueError(f"seen is {tuple(seen.shape)}: want ({len(scores)}, S)")
    items = scores.shape[1]
    if len(target) and not (int(target.min()) >= 1 and int(target.max()) < items):
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


class RankingMetrics(Metric):
    """Means over users at k under both protocols in one pass: seen items masked, and all items (`/all`).

    The states are sums and a count, so several processes give the mean over all users, not the mean of their means.
    If the users are a sample, `standard_errors` has the standard errors of the means of all users.

    >>> metrics = RankingMetrics(k=10)
    >>> metrics.update(torch.tensor([[0.0, 0.9, 0.5, 0.7]]), torch.tensor([2]), torch.tensor([[1, 3]]))
    >>> {name: float(value) for name, value in metrics.compute().items()}
    {'ndcg@10': 1.0, 'hit@10': 1.0, 'ndcg@10/all': 0.5, 'hit@10/all': 1.0}

    Args:
        k: how many of the first items count.
        kinds: which of ndcg, hit, precision, recall and mrr.
    """

    is_differentiable = False
    full_state_update = False

    def __init__(self, k: int = 10, kinds: Sequence[str] = ("ndcg", "hit"), **options: Any) -> None:
        super().__init__(**options)
        self.k = k
        self.kinds = tuple(kinds)
        self.totals: Tensor
        self.squares: Tensor
        self.users: Tensor
        self.add_state("squares", torch.zeros(2 * len(self.kinds), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("totals", torch.zeros(2 * len(self.kinds), dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("users", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Tensor, target: Tensor, seen: Tensor) -> None:
        self.enter(*both_ranks(scores, target, seen))

    def enter(self, everyone: Tensor, unseen: Tensor) -> None:
        """Add users by their ranks among all items and among unseen items."""
        gains = torch.stack([GAINS[kind](ranks, self.k) for ranks in (unseen, everyone) for kind in self.kinds])
        self.totals += gains.sum(1)
        self.squares += gains.square().sum(1)
        self.users += len(everyone)
        self._computed, self._update_count = None, self._update_count + 1  # as torchmetrics does around `update`

    @property
    def names(self) -> list[str]:
        return [f"{kind}@{self.k}{which}" for which in ("", "/all") for kind in self.kinds]

    def compute(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.totals / self.users, strict=True))

    def standard_errors(self, population: int) -> dict[str, Tensor]:
        """The standard error of each mean, for a uniform sample of `population` users: 0 if all users were counted.

        >>> metrics = RankingMetrics(k=1, kinds=["hit"])
        >>> metrics.enter(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 0]))
        >>> {name: round(float(error), 4) for name, error in metrics.standard_errors(population=16).items()}
        {'hit@1': 0.0, 'hit@1/all': 0.25}
        """
        mean = self.totals / self.users
        variance = (self.squares / self.users - mean.square()).clamp(min=0) / (self.users - 1).clamp(min=1)
        return dict(zip(self.names, (variance * (1 - self.users / population)).sqrt(), strict=True))
