"""A sum of users' gradients of a table, kept as the rows that occur in it."""

from __future__ import annotations

import torch
from torch import Tensor

from dprec.privacy.contribution import Contribution, Rows, SharedRows


class RowSum:
    """Adds up rows of a table of this shape, in float32 at least; nothing it does grows with the table.

    >>> total = RowSum(torch.Size([9, 2]), torch.float32)
    >>> total.add(Rows(torch.tensor([[4, 7], [4, 0]]), torch.ones(2, 2, 2)), torch.tensor([1.0, 0.5]))
    >>> total.merged()
    (tensor([0, 4, 7]), tensor([[0.5000, 0.5000],
            [1.5000, 1.5000],
            [1.0000, 1.0000]]))
    """

    def __init__(self, shape: torch.Size, dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = torch.promote_types(dtype, torch.float32)
        self._parts: list[tuple[Tensor, Tensor]] = []

    def zero_(self) -> None:
        self._parts.clear()

    def add(self, use: Contribution, weight: Tensor) -> None:
        """Add Σ_u weight[u] · gradient_u of one use."""
        assert isinstance(use, (Rows, SharedRows))
        self._parts.append(use.weighted_rows(weight))

    def merged(self) -> tuple[Tensor, Tensor]:
        """Return the rows that were added to, ascending, and their sums (n, d)."""
        if not self._parts:
            return torch.zeros(0, dtype=torch.int64), torch.zeros(0, *self.shape[1:], dtype=self.dtype)
        rows, back = torch.cat([ids for ids, _ in self._parts]).unique(return_inverse=True)
        values = torch.cat([part.to(self.dtype) for _, part in self._parts])
        return rows, values.new_zeros(len(rows), *self.shape[1:]).index_add_(0, back, values)

    def at(self, rows: Tensor) -> Tensor:
        """Return the sums of these rows, which ascend; all that was added is among them."""
        own, values = self.merged()
        total = values.new_zeros(len(rows), *self.shape[1:])
        total[torch.searchsorted(rows, own.to(rows.device))] = values.to(total.device)
        return total
