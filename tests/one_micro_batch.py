"""The engine on one micro-batch, without a step around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dprec.gradients.clipping import ClippedUsers, Clipping, add_recorded, add_rest_alone, recorded, together
from dprec.gradients.row_sum import RowSum


def add_clipped(
    sums: Mapping[str, Tensor | RowSum],
    parameters: Mapping[str, nn.Parameter],
    losses_of: Callable[[Any], Tensor],
    batch: Any,
    clipping: Clipping,
) -> ClippedUsers:
    """Add Σ_u scale_u · g_u of one micro-batch to `sums`, one of at least float32 for each parameter."""

    def add(part: Any) -> ClippedUsers:
        return together([add_recorded(sums, own, clipping) for _, own in recorded(parameters, losses_of, part)])

    return add_rest_alone(add(batch), batch, add)


def one_by_one(
    parameters: Mapping[str, nn.Parameter], losses_of: Callable[[Any], Tensor], batch: Tensor, clipping: Clipping
) -> dict[str, Tensor]:
    """Do the same by plain autograd, one user at a time, and return the sums."""
    sums = {name: torch.zeros_like(value, dtype=torch.float64).detach() for name, value in parameters.items()}
    for user in batch.split(1):
        loss = losses_of(user).sum()
        own = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
        norm = torch.cat([gradient.double().flatten() for gradient in own]).norm()
        for total, gradient in zip(sums.values(), own, strict=True):
            total += gradient.double() * clipping.scale(norm)
    return sums
