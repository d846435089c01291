"""What a batch looks up, as the host is told of it: one copy from a card for all tables, not a question for each."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dprec.gradients.clipping import Recorded
from dprec.gradients.contributions.look_ups import Rows
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
    finite = torch.stack([use.terms() for use in own]).isfinite().all(0)
    ids, moved = torch.cat([use.ids for use in own], 1).long(), torch.cat([use.with_gradient() for use in own], 1)
    *told, unbroken = (
        torch.cat([ids * 2 + moved, finite.unsqueeze(1)], 1).cpu().split([*(use.ids.shape[1] for use in own), 1], 1)
    )  # the one wait
    recorded.told = {}
    for (name, _), each in zip(uses, told, strict=True):
        recorded.told.setdefault(name, []).append(Rows(each >> 1, (each & 1).float().unsqueeze(2)))
    return unbroken.squeeze(1) == 0
