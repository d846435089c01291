"""Builds users' gradients a slice of users at a time: exact for any mixture of uses, cross terms included."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor

from dprec.gradients.contributions.base import SLICE, Contribution, users_at_once
from dprec_kernels.paths import host_readable
from dprec_kernels.wide_sum import WidePart
from dprec_kernels.workspace import workspace

TERMS = 64  # squares that are added up in float32


def built(
    contributions: Sequence[Contribution], shape: Size, users: int, dtype: torch.dtype | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of users and their gradients (b, *shape); each slice overwrites the previous one's gradients."""
    held = precision(contributions)
    like = torch.empty(0, dtype=dtype or held["dtype"], device=held["device"])
    first, *others = contributions
    step = min(users, users_at_once(shape.numel(), like, SLICE)) or 1
    memory = workspace.take("gradients", (step, *shape), like)
    for start in range(0, users, step):
        chosen = slice(start, min(start + step, users))
        gradient = memory[: chosen.stop - start]
        first.write(gradient, chosen)
        for contribution in others:
            contribution.materialise(gradient, chosen)
        yield chosen, gradient


def square(gradient: Tensor) -> Tensor:
    """Return (b,) squared norms, in float64.

    On a CPU, float32 squares are summed in float32 over 64 numbers at a time, then in float64. In any order of
    summation, a norm's relative error is below 2e-6, for which `clipping` leaves room.

    >>> square(torch.tensor([[3.0, 4.0], [3e20, 4e20]]))
    tensor([2.5000e+01, 2.5000e+41], dtype=torch.float64)
    """
    rows = gradient.reshape(gradient.shape[0], -1)
    whole = rows.shape[1] - rows.shape[1] % TERMS
    if rows.dtype != torch.float32 or not whole or not host_readable(rows):
        return _wide_square(rows)
    few = rows if whole == rows.shape[1] else rows[:, :whole]
    squared = _wide_square(torch.linalg.vector_norm(few.view(rows.shape[0], whole // TERMS, TERMS), dim=2))
    if few is not rows:
        squared += _wide_square(rows[:, whole:])
    if not math.isfinite(squared.sum()):  # squares of float32 overflow early
        over = ~torch.isfinite(squared)
        squared[over] = _wide_square(rows[over])
    return squared


def _wide_square(rows: Tensor) -> Tensor:
    norm = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    return norm.mul_(norm)


def precision(contributions: Sequence[Contribution]) -> dict[str, Any]:
    """Return the dtype, float32 at least, and the device for building users' gradients."""
    dtype, device = torch.float32, None
    for contribution in contributions:
        for value in contribution.numbers():
            device = device or value.device
            if value.dtype is not dtype:
                dtype = torch.promote_types(dtype, value.dtype)
    return {"dtype": dtype, "device": device}


@dataclass
class BuiltAgain(Contribution):
    """Users' gradients that are too large to keep: built for the norm, and again in the same way for the sum."""

    uses: list[Contribution]
    shape: Size

    def materialise(self, out: Tensor, users: slice) -> None:
        for use in self.uses:
            use.materialise(out, users)

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        part = WidePart(total, weight.dtype)
        for chosen, gradient in built(self.uses, self.shape, len(weight)):
            part.add(gradient, weight[chosen])
        part.flush()

    def forget(self, lost: Tensor) -> None:
        for use in self.uses:
            use.forget(lost)

    def numbers(self) -> list[Tensor]:
        return [value for use in self.uses for value in use.numbers()]
