"""What a batch looks up, as the host is told of it: one copy from a card for all tables, not a question for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dprec.gradients.clipping import Recorded
from dprec.gradients.contributions.look_ups import Rows
from dprec.gradients.joint_rows import repeated
from dprec_kernels.paths import answers_at_once


def tell(tables: Iterable[str], recorded: Recorded) -> Tensor | None:
    """Keep on the host which rows of these tables the users read, and which reads have a gradient.

    Return (B,) whose gradient of the tables is not finite; None where there is nothing to tell: on a CPU, or where a
    table is used in another way than by rows of each user's own.
    """
    uses = [(name, use) for name in tables for use in recorded.contributions.get(name, ())]
    own = [use for _, use in uses if isinstance(use, Rows)]
    if not own or len(own) < len(uses) or answers_at_once(recorded.losses):
        return None
    ids, (moved, finite) = torch.cat([use.ids for use in own], 1).long(), _gradients(own)
    *told, unbroken = (
        torch.cat([ids * 2 + moved, finite.unsqueeze(1)], 1).cpu().split([*(use.ids.shape[1] for use in own), 1], 1)
    )  # the one wait
    recorded.told = {}
    for (name, _), each in zip(uses, told, strict=True):
        recorded.told.setdefault(name, []).append(Rows(each >> 1, (each & 1).float().unsqueeze(2)))
    return unbroken.squeeze(1) == 0


def _gradients(uses: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    """Return (B, N) which of all reads have a gradient, a finite one, and (B,) whose gradients are finite."""
    if all(use.ids.shape[1] == 1 and use.values.dtype == torch.float32 for use in uses):
        side_by_side = torch.cat([use.values.reshape(len(use.ids), -1) for use in uses], 1).double()
        widths = [use.values.shape[1:].numel() for use in uses]
        squares = side_by_side.new_zeros(len(side_by_side), len(uses)).index_add_(
            1, repeated(range(len(uses)), widths, side_by_side.device), side_by_side.square()
        )  # of float32, which float64 can neither be too small nor too large for
        return (squares > 0) & (squares < torch.inf), squares.sqrt().float().isfinite().all(1)
    moved = torch.cat([use.with_gradient() for use in uses], 1)
    return moved, torch.stack([use.terms() for use in uses]).isfinite().all(0)
