"""A proof, made where a run trains, that a user's numbers have the same bits whoever else is in the batch.

Processors and libraries differ, and so do loaders of one's own. So before the first step a few drawn users are computed
alone, each in a micro-batch that is filled up, and together. Each one's loss and norm over all parameters must be equal
to the last bit: a norm takes part of every number of a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from dprec.checks.state import attributes, restore_attributes
from dprec.contract import Losses
from dprec.errors import NoRule
from dprec.gradients import clipping
from dprec.gradients.clipping import record

FEW = 6  # users that are looked at


def equal_in_any_company(
    module: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    losses: Losses,
    made: Callable[[Sequence[int]], Sequence[Any]],
    drawn: Sequence[int],
) -> bool:
    """Whether the first of the drawn users have equal bits alone and together. `made` gives micro-batches of users.

    Masks are drawn for a batch as it comes, so the module is in eval mode. Where users are taken one by one, each is
    alone whoever else is there.
    """
    users = list(drawn[:FEW])
    with _in_eval_mode(module):
        try:
            alone = [own for user in users for own in _measured(parameters, losses, made([user]))]
            return sorted(alone) == sorted(_measured(parameters, losses, made(users)))
        except NoRule:
            return True


def _measured(parameters: Mapping[str, nn.Parameter], losses: Losses, parts: Sequence[Any]) -> list[tuple[float, ...]]:
    """Return each user's loss and squared norms of all parameters."""
    shapes = {name: parameters[name].shape for name in sorted(parameters)}
    found: list[tuple[float, ...]] = []
    for part in parts:
        recorded = record(parameters, losses, part)
        with torch.no_grad():
            squared = clipping.squared_norms(recorded.contributions, shapes, recorded.rows)
            each = [recorded.losses.double(), *(squared[name] for name in shapes if name in squared)]
        rows = torch.stack([one.cpu() for one in each], 1)[: recorded.real].nan_to_num(nan=-1.0)
        found += [tuple(row) for row in rows.tolist()]
    return found


@contextmanager
def _in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Leave the module as it was afterwards, whatever its losses keep in attributes."""
    held = attributes(module)
    module.eval()
    try:
        yield
    finally:
        restore_attributes(held)
