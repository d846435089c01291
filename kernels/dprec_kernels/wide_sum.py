"""Sums over many users for which float32 is too coarse: parts of a few rows in float32, their sum in float64.

A float32 sum's rounding errors are proportional to the sum so far. For equal users, these errors have the same sign,
and the batch decides which rows are added together. So the error for each user is kept small.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dprec_kernels.paths import host_readable
from dprec_kernels.products import add_multiplied, add_summed, multiply_each, product
from dprec_kernels.workspace import workspace

TOGETHER = 64  # users, or rows of a product, that are added up in float32: a measured relative error of at most 8e-7
PARTS = 8  # such parts that are added up in float32
LARGE = 1 << 14  # numbers of a sum from which only one part at a time stays in the cache
IN_CACHE = 1 << 18  # numbers of a sum that are processed at a time: 1 MB; fewer, larger products are faster
HELD = 1 << 20  # numbers in parts of smaller sums that are kept together
HELD_ON_CARD = 1 << 28  # the same on a GPU, where each launch costs as much as many numbers: 1 GB


class WidePart:
    """A part of a sum: `add` adds to `sum`, and `flush` adds it to the total."""

    def __init__(self, total: Tensor, dtype: torch.dtype) -> None:
        self.total = total
        self.sum = total
        self._users = 0
        if total.dtype != dtype and host_readable(total):
            like = torch.empty(0, dtype=dtype, device=total.device)
            self.sum = workspace.take("part of a sum", total.shape, like).zero_()

    def add(self, gradients: Tensor, weight: Tensor) -> None:
        """Add Σ_u weight[u] · gradients[u], of at most `TOGETHER` users on a CPU."""
        if self.sum is self.total and self.total.dtype != gradients.dtype:
            add_rows(self.total, gradients, weight.to(gradients.dtype))
            return
        self._users += gradients.shape[0]
        if self._users > TOGETHER:
            self.flush()
            self._users = gradients.shape[0]
        self.sum.view(-1).addmv_(gradients.view(gradients.shape[0], -1).T, weight.to(gradients.dtype))

    def flush(self) -> None:
        if self.sum is not self.total:
            self.total.add_(self.sum)
            self.sum.zero_()


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add Σ_n left_n rightᵀ_n, for (…, N, o) and (…, N, i), to a total (…, o, i) that may be wider.

    >>> total = torch.zeros(1, 1, dtype=torch.float64)
    >>> add_product(total, torch.full((10_000_000, 1), 0.1), torch.ones(10_000_000, 1))
    >>> bool(abs(float(total / 0.1) / 10_000_000 - 1) < 8e-7)
    True
    """
    numbers = total.numel()
    if not numbers:  # such as if a strategy has chosen no rows
        return
    if total.dtype == left.dtype:
        add_summed(total, left, right)
    elif not host_readable(total):
        _add_parts(total, left, right, HELD_ON_CARD // numbers)
    elif numbers < LARGE or total.ndim > 2:
        _add_parts(total, left, right, HELD // numbers)
    else:
        step = max(1, IN_CACHE // total.shape[1])
        for start in range(0, total.shape[0], step):  # parts of the sum stay in the cache
            own = slice(start, start + step)
            _add_in_turn(total[own], left[:, own], right)


def lengths(values: Tensor) -> Tensor:
    """Return the norms of vectors (…, n), also if their squares overflow, so that no user is left out for that.

    >>> lengths(torch.tensor([[3.0, 4.0], [3e20, 4e20]]))
    tensor([5.0000e+00, 5.0000e+20])
    """
    if not host_readable(values):
        return torch.linalg.vector_norm(values, dim=-1, dtype=torch.float64).to(values.dtype)
    norms = torch.linalg.vector_norm(values, dim=-1)
    if not math.isfinite(float(norms.sum())):
        over = torch.isinf(norms)
        norms[over] = torch.linalg.vector_norm(values[over], dim=-1, dtype=torch.float64).to(norms.dtype)
    return norms


def add_rows(total: Tensor, values: Tensor, weight: Tensor) -> None:
    """Add Σ_n weight_n values_n, for (N, …) and (N,), to a total (…) that is wider.

    >>> total = torch.zeros(2, dtype=torch.float64)
    >>> add_rows(total, torch.ones(100, 2), torch.full((100,), 0.5))
    >>> total
    tensor([50., 50.], dtype=torch.float64)
    """
    numbers = total.numel()
    if not numbers:
        return
    left, right = weight.unsqueeze(1), values.reshape(values.shape[0], numbers)
    if left.shape[0] < TOGETHER:
        total += (left.T @ right).view(total.shape)
        return
    sums = total.new_zeros(1, numbers)
    _add_parts(sums, left, right, (HELD if host_readable(total) else HELD_ON_CARD) // numbers)
    total += sums.view(total.shape)


def _add_in_turn(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Multiply `TOGETHER` rows at a time, and add up `PARTS` such products before they are added to the total."""
    memory, columns, rows = workspace.take("parts in turn", total.shape, left), left.T, right.shape[0]
    for first in range(0, rows, PARTS * TOGETHER):
        multiply_each(columns[:, first : first + TOGETHER], right[first : first + TOGETHER], memory)
        for start in range(first + TOGETHER, min(rows, first + PARTS * TOGETHER), TOGETHER):
            add_multiplied(memory, columns[:, start : start + TOGETHER], right[start : start + TOGETHER])
        total += memory


def _add_parts(total: Tensor, left: Tensor, right: Tensor, most: int) -> None:
    """Multiply `TOGETHER` rows at a time, and add up at most `most` products."""
    rows = left.shape[-2]
    whole = rows - rows % TOGETHER
    step = TOGETHER * max(1, most)
    for start in range(0, whole, step):
        length = min(step, whole - start)
        a, b = (left, right) if length == rows else (left.narrow(-2, start, length), right.narrow(-2, start, length))
        a, b = a.unflatten(-2, (-1, TOGETHER)), b.unflatten(-2, (-1, TOGETHER))
        memory = workspace.take("parts of a product", (*a.shape[:-2], *total.shape[-2:]), left)
        parts = multiply_each(a.mT, b, memory)
        total += parts.sum(-3, dtype=total.dtype)
    if whole < rows:
        if whole:
            left, right = left.narrow(-2, whole, rows - whole), right.narrow(-2, whole, rows - whole)
        total += product(left.mT, right)
