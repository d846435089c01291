"""What an optimizer does to rows of a table, given their gradients. Rows that are not in the step stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dprec_kernels.workspace import workspace


class Rule(Protocol):
    """How a table's rows (n,), each there once, change with their gradient (n, d), which may be overwritten."""

    def update(self, table: Tensor, rows: Tensor, gradient: Tensor) -> None:
        """Change table[rows] in place."""


@dataclass(frozen=True)
class SGD:
    """w ← w - lr · (g + decay · w)."""

    lr: float
    decay: float = 0.0

    def update(self, table: Tensor, rows: Tensor, gradient: Tensor) -> None:
        """Change table[rows] in place."""
        _step(table, rows, gradient, self.lr, 1 - self.lr * self.decay)


@dataclass(frozen=True)
class Momentum:
    """m ← momentum · m + g + decay · w, then w ← w - lr · m; `buffer` holds m and has the table's shape."""

    lr: float
    momentum: float
    buffer: Tensor
    decay: float = 0.0

    def update(self, table: Tensor, rows: Tensor, gradient: Tensor) -> None:
        """Change table[rows] and buffer[rows] in place."""
        if self.decay:
            gradient.add_(_read("weights", table, rows), alpha=self.decay)
        gradient.add_(_read("buffer", self.buffer, rows), alpha=self.momentum)
        self.buffer.index_copy_(0, rows, gradient)
        _step(table, rows, gradient, self.lr)


@dataclass(frozen=True)
class RowAdagrad:
    """s ← s + mean of g² over the row, then w ← w - lr · g / (√s + eps); `total` (rows,) holds s."""

    lr: float
    total: Tensor
    eps: float = 1e-10

    def update(self, table: Tensor, rows: Tensor, gradient: Tensor) -> None:
        """Change table[rows] and total[rows] in place."""
        total = self.total[rows] + torch.linalg.vector_norm(gradient, dim=1).square_().div_(gradient.shape[1])
        self.total.index_copy_(0, rows, total)
        _step(table, rows, gradient.div_(total.sqrt_().add_(self.eps).unsqueeze(1)), self.lr)


def _step(table: Tensor, rows: Tensor, direction: Tensor, lr: float, keep: float = 1.0) -> None:
    """w ← keep · w - lr · direction; `index_add_` with a factor takes three times as long on a CPU."""
    weights = _read("weights", table, rows)
    if keep != 1:
        weights.mul_(keep)
    table.index_copy_(0, rows, weights.add_(direction, alpha=-lr))


def _read(name: str, table: Tensor, rows: Tensor) -> Tensor:
    return torch.index_select(table, 0, rows, out=workspace.take(name, (len(rows), table.shape[1]), table))
