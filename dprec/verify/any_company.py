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
from torch import Tensor, nn

from dprec.checks.state import attributes, restore_attributes
from dprec.contract import Losses
from dprec.errors import NoRule
from dprec.gradients import norms
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
    found: list[tuple[float, ...]] = []
    for part in parts:
        recorded = record(parameters, losses, part)
        with torch.no_grad():
            each = [recorded.losses.double().cpu(), *_squared(parameters, recorded.contributions, recorded.rows)]
        rows = torch.stack(each, 1)[: recorded.real].nan_to_num(nan=-1.0)
        found += [tuple(row) for row in rows.tolist()]
    return found


def _squared(parameters: Mapping[str, nn.Parameter], contributions: Mapping[str, Any], rows: int) -> list[Tensor]:
    zeros = torch.zeros(rows, dtype=torch.float64)
    shapes = {name: p.shape for name, p in parameters.items()}
    return [
        norms.squared_norms(contributions[name], rows, shapes[name]).cpu() if name in contributions else zeros
        for name in sorted(parameters)
    ]


@contextmanager
def _in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Leave the module as it was afterwards, whatever its losses keep in attributes."""
    held = attributes(module)
    state = torch.get_rng_state()
    module.eval()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        restore_attributes(held)
