"""Full-ranking metrics at k of next-item recommendation, from the ranks of each user's held-out items.

A user has one held-out item or several. The functions take ranks (B,) or (B, K), where `NOWHERE` is padding, and return
one value per user. With one item recall@k is HIT@k, and precision@k is HIT@k / k: both exist because papers
report them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dprec.metrics.metric import Metric
from dprec.metrics.ranks import NOWHERE, both_ranks


def ndcg_at(ranks: Tensor, k: int = 10) -> Tensor:
    """NDCG@k: the sum of 1 / log2(rank + 2) over held-out items within the first k, divided by the best such sum.

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

    >>> hit_at(torch.tensor([0, 2, 10]))
    tensor([1., 1., 0.], dtype=torch.float64)
    """
    return (_columns(ranks) < k).any(1).double()


def precision_at(ranks: Tensor, k: int = 10) -> Tensor:
    """Precision@k: the share of the first k that is held out.

    >>> precision_at(torch.tensor([0, 2, 10]), k=5)
    tensor([0.2000, 0.2000, 0.0000], dtype=torch.float64)
    """
    return (_columns(ranks) < k).sum(1).double() / k


def recall_at(ranks: Tensor, k: int = 10) -> Tensor:
    """Recall@k: the share of the user's held-out items that is among the first k, also where k is below their number.

    >>> recall_at(torch.tensor([[0, 4, 12], [3, 20, NOWHERE]])).round(decimals=4)
    tensor([0.6667, 0.5000], dtype=torch.float64)
    """
    ranks = _columns(ranks)
    return (ranks < k).sum(1).double() / _held_out(ranks)


def mrr_at(ranks: Tensor, k: int = 10) -> Tensor:
    """MRR@k: 1 / place of the first held-out item, counted from 1, within the first k, else 0.

    >>> mrr_at(torch.tensor([0, 3, 10]))
    tensor([1.0000, 0.2500, 0.0000], dtype=torch.float64)
    """
    first = _columns(ranks).min(1).values
    return torch.where(first < k, 1 / (first.double() + 1), 0.0)


def _columns(ranks: Tensor) -> Tensor:
    return ranks[:, None] if ranks.dim() == 1 else ranks


def _held_out(ranks: Tensor) -> Tensor:
    return (ranks != NOWHERE).sum(1)


# The metrics that a recipe's `metrics` may name, at a cutoff: ndcg@10. Training logs the default kinds of
# `RankingMetrics` alone.
GAINS = {"ndcg": ndcg_at, "hit": hit_at, "precision": precision_at, "recall": recall_at, "mrr": mrr_at}


class RankingMetrics(Metric):
    """Means over users at k under both protocols in one pass: seen items masked, and all items (`/all`).

    Several processes give the mean over all users, not the mean of their means.
    If the users are a sample, `standard_errors` has the standard errors of the means of all users.

    >>> metrics = RankingMetrics(k=10)
    >>> metrics.update(torch.tensor([[0.0, 0.9, 0.5, 0.7]]), torch.tensor([2]), torch.tensor([[1, 3]]))
    >>> {name: float(value) for name, value in metrics.compute().items()}
    {'ndcg@10': 1.0, 'hit@10': 1.0, 'ndcg@10/all': 0.5, 'hit@10/all': 1.0}

    Args:
        k: how many of the first items count.
        kinds: which of ndcg, hit, precision, recall and mrr.
    """

    def __init__(self, k: int = 10, kinds: Sequence[str] = ("ndcg", "hit")) -> None:
        self.k = k
        self.kinds = tuple(kinds)
        self.sums = {
            "gains": torch.zeros(2 * len(self.kinds), dtype=torch.float64),
            "squares": torch.zeros(2 * len(self.kinds), dtype=torch.float64),
            "users": torch.zeros((), dtype=torch.int64),
        }

    def update(self, scores: Tensor, target: Tensor, seen: Tensor) -> None:
        self.enter(*both_ranks(scores, target, seen))

    def enter(self, everyone: Tensor, unseen: Tensor) -> None:
        """Add users by their ranks among all items and among unseen items."""
        gains = torch.stack([GAINS[kind](ranks, self.k) for ranks in (unseen, everyone) for kind in self.kinds])
        sums = self.on(gains.device)
        sums["gains"] += gains.sum(1)
        sums["squares"] += gains.square().sum(1)
        sums["users"] += len(everyone)

    @property
    def names(self) -> list[str]:
        return [f"{kind}@{self.k}{which}" for which in ("", "/all") for kind in self.kinds]

    def compute(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.sums["gains"] / self.sums["users"], strict=True))

    def standard_errors(self, population: int) -> dict[str, Tensor]:
        """The standard error of each mean, for a uniform sample of `population` users: 0 if all users were counted.

        >>> metrics = RankingMetrics(k=1, kinds=["hit"])
        >>> metrics.enter(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 0]))
        >>> {name: round(float(error), 4) for name, error in metrics.standard_errors(population=16).items()}
        {'hit@1': 0.0, 'hit@1/all': 0.25}
        """
        gains, squares, users = self.sums.values()
        mean = gains / users
        variance = (squares / users - mean.square()).clamp(min=0) / (users - 1).clamp(min=1)
        return dict(zip(self.names, (variance * (1 - users / population)).sqrt(), strict=True))
