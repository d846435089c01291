"""Sums over many users that float32 cannot hold: parts of a few rows in float32, their sum in float64.

What is added up in float32 is rounded in proportion to how much is there already. Of users who are all alike these
errors point one way, and who is in the batch decides which rows come together: so they are kept small a user.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from dprec.gradients.catalogue_rows import CatalogueRows
from dprec.gradients.contribution import Contribution, Dense, Outer, Rows, SharedRows
from dprec_kernels.workspace import workspace

ROWS = 128  # of a linear map that are added up in float32
USERS = 64  # whose built gradients are
POSITIONS = 512  # of softmaxes over a catalogue, about
HELD = 1 << 20  # numbers in such parts of a sum that are held at a time


def add_weighted(total: Tensor, use: Contribution, weight: Tensor, dtype: torch.dtype) -> None:
    """Add Σ_u weight[u] · gradient_u to `total`, which may be wider than the gradients' `dtype`."""
    weight = weight.to(dtype)
    if total.dtype == dtype:
        use.add_weighted(total, weight)
    elif isinstance(use, Rows):
        ids, values = use.weighted_rows(weight)
        total.index_add_(0, ids, values.to(total.dtype))
    elif isinstance(use, (Outer, SharedRows)):
        left, right = (use.left * weight[:, None, None]).flatten(0, 1), use.right.flatten(0, 1)
        product = summed_product(left, right, total.dtype)
        if isinstance(use, Outer):
            total += product
        else:
            total.index_add_(0, use.ids, product)
    else:
        part = WidePart(total, dtype)
        for piece, own in _pieces(use, weight):
            piece.add_weighted(part.sum, own)
            part.flush()


class WidePart:
    """A part of a sum: what is added to `sum` goes to the total with `flush`."""

    def __init__(self, total: Tensor, dtype: torch.dtype) -> None:
        self.total = total
        self.sum = total
        if total.dtype != dtype:
            like = torch.empty(0, dtype=dtype, device=total.device)
            self.sum = workspace.take("part of a sum", total.shape, like).zero_()

    def flush(self) -> None:
        if self.sum is not self.total:
            self.total.add_(self.sum)
            self.sum.zero_()


def summed_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Return Σ_n left_n rightᵀ_n for (N, o) and (N, i)."""
    total = left.new_zeros(left.shape[1], right.shape[1], dtype=dtype)
    if not total.numel():  # as where a strategy has chosen none of the rows
        return total
    whole = len(left) - len(left) % ROWS
    step = ROWS * max(1, HELD // max(1, total.numel()))
    for start in range(0, whole, step):
        stop = min(start + step, whole)
        a, b = (x[start:stop].view(-1, ROWS, x.shape[1]) for x in (left, right))
        total += torch.bmm(a.mT, b).sum(0, dtype=dtype)
    total += left[whole:].T @ right[whole:]
    return total


def _pieces(use: Contribution, weight: Tensor) -> Iterator[tuple[Contribution, Tensor]]:
    """Yield parts of a use, so small that float32 holds the sum of each."""
    if isinstance(use, Dense):
        for start in range(0, len(weight), USERS):
            users = slice(start, start + USERS)
            yield Dense(use.values[users]), weight[users]
    elif isinstance(use, CatalogueRows):
        groups, positions = [], 0
        for group in use.groups:
            groups.append(group)
            positions += len(group.users) * group.length
            if positions >= POSITIONS:
                yield replace(use, groups=groups), weight
                groups, positions = [], 0
        yield replace(use, groups=groups), weight
    else:
        yield use, weight
