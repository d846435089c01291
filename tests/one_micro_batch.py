"""The engine on one micro-batch, without a step around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
