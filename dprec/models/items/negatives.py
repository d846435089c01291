"""A softmax over a few items instead of the catalogue, so that a step's cost does not grow with the catalogue."""

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
    """`count` distinct items of the catalogue for each step, uniform and independent of all data.

    All users of a step share one draw. It is a function of the step and of a key from torch's generator, so it is the
    same in all micro-batches and in a resumed run, and does not depend on the users in the batch. It is not secret.

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
        """Return the cross-entropy (B, T) with the step's negatives in place of the whole catalogue.

        Each negative has the weight `catalogue / count`, which makes the sum over the catalogue unbiased; with as many
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

    Every distinct target is a negative once, so popular items need no correction by their frequency.
    """
    return sampled_softmax(hidden, table, target, target[target != 0].unique(), weight=1.0)


def sampled_softmax(hidden: Tensor, table: Tensor, target: Tensor, ids: Tensor, weight: float) -> Tensor:
    """Return log(exp(own score) + weight Σ exp(scores of ids)) - own score: (B, T), 0 where there is no target.

    A position's own target is left out of its negatives. This depends only on that position.
    """
    outside = target == 0  # (B, T)
    hidden = hidden.masked_fill(outside.unsqueeze(-1), 0.0)  # scores of padding must not overflow
    rows = F.embedding(ids, table)
    # The loss depends only on differences of scores. If items have a large common part, rounding would hide these.
    common = rows.detach().sum(0) / max(1, len(ids))
    own = (hidden * (F.embedding(target, table) - common)).sum(-1)
    others = F.linear(hidden, rows - common)  # (B, T, K)
    others = others.masked_fill(target.unsqueeze(-1) == ids, -torch.inf).logsumexp(-1) + math.log(weight)
    return -F.logsigmoid(own - others).masked_fill(outside, 0.0)


def shared_negatives(negatives: Negatives, items: int) -> SharedNegatives | None:
    """Return the object that draws shared negatives; None if the loss uses in-batch negatives or all items."""
    if negatives is None or negatives == "in-batch":
        return None
    if isinstance(negatives, bool) or not isinstance(negatives, int) or negatives < 1:
        raise UserError(
            f"model.negatives is {negatives!r}: give a number of items from 1 up, in-batch, or null for all"
        )
    return SharedNegatives(items, negatives)
