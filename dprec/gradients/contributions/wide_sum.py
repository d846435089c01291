"""Sums over many users that float32 cannot hold: parts of a few rows in float32, their sum in float64.

What is added up in float32 is rounded in proportion to how much is there already. Of users who are all alike these
errors point one way, and who is in the batch decides which rows come together: so they are kept small a user.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dprec_kernels.workspace import workspace

ROWS = 128  # of a linear map that are added up in float32
USERS = 64  # whose built gradients are
POSITIONS = 512  # of softmaxes over a catalogue, about
HELD = 1 << 20  # numbers in such parts of a sum that are held at a time


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
