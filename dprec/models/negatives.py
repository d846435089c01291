"""A softmax over a few items instead of the whole catalogue, so that a step does not grow with the catalogue."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.errors import UserError

Negatives: TypeAlias = int | Literal["in-batch"] | None


class SharedNegatives:
    """`count` distinct items of the catalogue for each step, uniform and independent of anybody's data.

    One draw serves all users of a step. It is a function of the step and of a key from torch's generator, so that
    micro-batches agree, a resumed run draws on, and who is in the batch changes nothing. It is no secret.

    >>> negatives = SharedNegatives(items=1001, count=3)
    >>> torch.equal(negatives.of(7), negatives.of(7)), torch.equal(negatives.of(7), negatives.of(8))
    (True, False)
    """

    def __init__(self, items: int, count: int) -> None:
        self.catalogue = items - 1
        self.count = min(count, self.catalogue)
        self._key = int(torch.randint(2**62, ()))

    def of(self, step: int) -> Tensor:
        """Return the ids (count,), ascending, of one step."""
        return _drawn(self._key, step, self.catalogue, self.count)

    def softmax(self, hidden: Tensor, table: Tensor, target: Tensor, step: int) -> Tensor:
        """Return the cross-entropy (B, T) with the step's negatives standing for the whole catalogue.

        Each stands for `catalogue / count` items, which makes the sum over the catalogue unbiased; with as many
        negatives as items the loss is exact.
        """
        ids = self.of(step).to(target.device)
        return sampled_softmax(hidden, table, target, ids, weight=self.catalogue / self.count)


@lru_cache(maxsize=2)  # a step's micro-batches share one draw
def _drawn(key: int, step: int, catalogue: int, count: int) -> Tensor:
    rng = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, step]))
    return torch.from_numpy(np.sort(rng.choice(catalogue, size=count, replace=False, shuffle=False)) + 1)


def in_batch_softmax(hidden: Tensor, table: Tensor, target: Tensor) -> Tensor:
    """Return the cross-entropy (B, T) over the distinct targets of all users in the micro-batch.

    Popular items are no more often negatives than others, which is the usual correction by their frequency.
    """
    return sampled_softmax(hidden, table, target, target[target != 0].unique(), weight=1.0)


def sampled_softmax(hidden: Tensor, table: Tensor, target: Tensor, ids: Tensor, weight: float) -> Tensor:
    """Return log(exp(own score) + weight Σ exp(scores of ids)) - own score: (B, T), 0 where there is no target.

    A position's own target is left out of its negatives, which depends on that position alone.
    """
    outside = target == 0  # (B, T)
    hidden = hidden.masked_fill(outside.unsqueeze(-1), 0.0)  # scores of padding must not overflow
    rows = F.embedding(ids, table)
    # The loss knows differences of scores alone. Items that have much in common would leave only rounding of them.
    common = rows.detach().sum(0) / max(1, len(ids))
    own = (hidden * (F.embedding(target, table) - common)).sum(-1)
    others = F.linear(hidden, rows - common)  # (B, T, K)
    others = others.masked_fill(target.unsqueeze(-1) == ids, -torch.inf).logsumexp(-1) + math.log(weight)
    return -F.logsigmoid(own - others).masked_fill(outside, 0.0)


def shared_negatives(negatives: Negatives, items: int) -> SharedNegatives | None:
    """Return what draws a number of items for all users alike; None where the loss takes others or all."""
    if negatives is None or negatives == "in-batch":
        return None
    if isinstance(negatives, bool) or not isinstance(negatives, int) or negatives < 1:
        raise UserError(
            f"model.negatives is {negatives!r}: give a number of items from 1 up, in-batch, or null for all"
        )
    return SharedNegatives(items, negatives)
