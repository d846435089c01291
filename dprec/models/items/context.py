"""Vectors of what is known of an event beside its item, such as its device or hour."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor, nn

from dprec.errors import UserError
from dprec.models.items.features import sum_of_vectors, table_of_values


class ContextVectors(nn.Module):
    """One table for all columns; an event's vector is the sum of its values', which start at 0.

    >>> vectors = ContextVectors({"device": 5, "hour": 24}, dim=2)
    >>> vectors(torch.tensor([[[3, 24], [0, 1]]])).shape, vectors.table.weight.shape
    (torch.Size([1, 2, 2]), torch.Size([30, 2]))
    """

    def __init__(self, rows: Mapping[str, int], dim: int) -> None:
        super().__init__()
        if not rows or any(isinstance(size, bool) or size < 1 for size in rows.values()):
            raise UserError(f"model.context_rows is {dict(rows)}: give each column of the context at least 1 row")
        self.table = table_of_values(rows, dim)
        self.before: Tensor  # (C,) rows of the columns before each
        self.register_buffer("before", torch.tensor([0, *accumulate(rows.values())][:-1]), persistent=False)

    def forward(self, values: Tensor) -> Tensor:
        """Return the vectors (B, T, d) of values (B, T, C), which count from 1; 0 is a missing one and adds nothing."""
        return sum_of_vectors(self.table, (values + self.before) * (values != 0))
