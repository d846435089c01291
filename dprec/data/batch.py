"""The inputs of a model: micro-batches of users or records for training, and batches for ranking."""

# Not frozen: Lightning's precision plugins write the tensors they convert back into the batch.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class SequenceBatch:
    """Users' histories for training; row u of every tensor belongs only to user u.

    Item ids start at 1; 0 is padding, on the right.

    >>> import torch
    >>> batch = SequenceBatch(torch.tensor([[3, 1, 0]]), torch.tensor([[1, 2, 0]]))
    >>> len(batch)
    1
    """

    history: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64: the item that follows each position, 0 where there is none

    def __len__(self) -> int:
        return self.history.shape[0]

    @property
    def empty(self) -> Tensor:
        """(B,) which users have no history: with privacy they add nothing to a step."""
        return (self.history == 0).all(1)

    def select(self, users: Sequence[int]) -> SequenceBatch:
        """Return the batch of only these users, in this order: as long as the longest of their histories."""
        rows = list(users)
        length = max(1, int((self.history[rows] != 0).sum(1).max())) if rows else 1
        return SequenceBatch(self.history[rows, :length], self.targets[rows, :length])

    def to(self, device: torch.device | str, **options: Any) -> SequenceBatch:
        return SequenceBatch(self.history.to(device, **options), self.targets.to(device, **options))


@dataclass
class RankingBatch:
    """Users' histories, and for each the one held-out item to rank."""

    history: Tensor  # (B, T) int64: the most recent items, right-padded with 0
    target: Tensor  # (B,) int64
    seen: Tensor  # (B, S) int64: every item the user saw before the target, padded with 0, repeats allowed

    def __len__(self) -> int:
        return self.history.shape[0]

    def to(self, device: torch.device | str, **options: Any) -> RankingBatch:
        return RankingBatch(
            self.history.to(device, **options),
            self.target.to(device, **options),
            self.seen.to(device, **options),
        )


@dataclass
class ClickBatch:
    """Records of a click log; row i of every tensor belongs only to record i.

    >>> import torch
    >>> batch = ClickBatch(torch.tensor([[3.0], [0.0]]), torch.tensor([[[2]], [[0]]]), torch.tensor([1.0, 0.0]))
    >>> len(batch), batch.select([1]).clicked
    (2, tensor([0.]))
    """

    numbers: Tensor  # (B, D) float32: counts, 0 where missing; some logs have a few negative ones
    categories: Tensor  # (B, F, P) int64: the ids of each of F features, repeats allowed, -1 where a bag is shorter
    clicked: Tensor  # (B,) float32: 0 or 1

    def __len__(self) -> int:
        return self.clicked.shape[0]

    def select(self, records: Sequence[int]) -> ClickBatch:
        """Return the batch of only these records, in this order."""
        rows = list(records)
        return ClickBatch(self.numbers[rows], self.categories[rows], self.clicked[rows])

    def to(self, device: torch.device | str, **options: Any) -> ClickBatch:
        return ClickBatch(
            self.numbers.to(device, **options),
            self.categories.to(device, **options),
            self.clicked.to(device, **options),
        )
