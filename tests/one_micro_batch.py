"""The engine on micro-batches, without a step around it, and what plain autograd makes of the same users."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dprec.gradients.clipping import ClippedUsers, Clipping, add_rest_alone, clip_and_add, together, user_gradients
from dprec.gradients.parameters import trained_parameters
from dprec.gradients.row_sum import RowSum
from dprec.gradients.uses.batches import select_users


def add_clipped(
    sums: Mapping[str, Tensor | RowSum],
    parameters: Mapping[str, nn.Parameter],
    losses_of: Callable[[Any], Tensor],
    batch: Any,
    clipping: Clipping,
) -> ClippedUsers:
    """Add Σ_u scale_u · g_u of one micro-batch to `sums`, one of at least float32 for each parameter."""

    def add(part: Any) -> ClippedUsers:
        return together([clip_and_add(sums, own, clipping) for _, own in user_gradients(parameters, losses_of, part)])

    return add_rest_alone(add(batch), batch, add)


def clipped_sums(
    model: Any,
    parts: Sequence[Any],
    clipping: Clipping,
    losses: Callable[[Any], Tensor] | None = None,
    dtype: torch.dtype | None = torch.float64,
) -> dict[str, Tensor]:
    """Return the engine's sums of some micro-batches, in the parameters' own types where `dtype` is None."""
    parameters = trained_parameters(model)
    sums = {name: torch.zeros_like(value, dtype=dtype).detach() for name, value in parameters.items()}
    for part in parts:
        add_clipped(sums, parameters, model.losses if losses is None else losses, part, clipping)
    return sums


def one_by_one(
    model: Any, batch: Any, clipping: Clipping, losses: Callable[[Any], Tensor] | None = None
) -> dict[str, Tensor]:
    """Return the sums of plain gradients of each user alone, each clipped."""
    alone = [select_users(batch, [user]) for user in range(len(batch))]
    of_each = [(model.losses if losses is None else losses)(user) for user in alone]
    return sum_of_each(trained_parameters(model), of_each, clipping)


def sum_of_each(
    parameters: Mapping[str, nn.Parameter], losses: Sequence[Tensor], clipping: Clipping
) -> dict[str, Tensor]:
    """Return the sum of these losses' plain gradients, each clipped."""
    sums = {name: torch.zeros_like(value, dtype=torch.float64).detach() for name, value in parameters.items()}
    for loss in losses:
        own = torch.autograd.grad(loss.sum(), [*parameters.values()], allow_unused=True, materialize_grads=True)
        norm = torch.cat([gradient.to_dense().double().flatten() for gradient in own]).norm()
        for total, gradient in zip(sums.values(), own, strict=True):
            total += gradient.to_dense().double() * clipping.scale(norm)
    return sums


def size(sums: Mapping[str, Tensor]) -> float:
    """Return the norm over all parameters, in float64."""
    return float(sum(total.double().square().sum() for total in sums.values()) ** 0.5)


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    assert one.keys() == other.keys()
    return size({name: one[name].double() - other[name].double() for name in one})


def off(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> float:
    """Return how far sums are from those they should be, in parts of these."""
    return distance(found, wanted) / size(wanted)
