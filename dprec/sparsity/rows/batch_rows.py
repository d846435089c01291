"""What the users of a batch do to the rows of some tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dprec.gradients.clipping import Clipping, Recorded, add_recorded
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.look_ups import LookUp
from dprec.gradients.row_sum import RowSum
from dprec.gradients.tape import Alone, select_alone
from dprec.sparsity.rows.row_choice import BatchRows
from dprec.sparsity.rows.tables import RowSpace
from dprec_kernels.ordering import distinct, is_among, picked


def only(uses: Iterable[Contribution], rows: Tensor | None) -> list[Contribution]:
    """Return what is left of a table's uses, all of them look-ups, where no other rows than these may change."""
    if rows is None:
        return list(uses)
    return [use.only(rows) for use in _look_ups(uses)]


def batch_rows(
    space: RowSpace,
    recorded: Sequence[Recorded],
    among: Tensor | None,
    declared: Mapping[str, Tensor] | None = None,
    rounding: float = 0.0,
) -> BatchRows:
    """Return what the users of these micro-batches look up; None stands for all rows of the space.

    A row counts for a user whose gradient is not zero there. What is read for padding, or for positions that only a
    longer history has, depends on who else is in the micro-batch; its gradient, which is zero, does not. The rows of
    tables that are `declared` change whoever is drawn, and count for nobody.
    """
    shared = [space.flat(name, rows) for name, rows in (declared or {}).items() if name in space.tables]
    alike = distinct(torch.cat(shared)) if shared else space.no_rows
    pairs, users = [space.no_rows], 0
    for part in recorded:
        for name in space.tables:
            for use in _look_ups(part.contributions.get(name, ())):
                user, ids = use.moved(alike - space.start(name))
                pairs.append((user + users) * space.size + space.flat(name, ids))
        users += part.users
    user, row = real_pairs(space, torch.cat(pairs))
    here = ~is_among(row, alike)
    if among is not None:
        here &= is_among(row, among)
        alike = alike[is_among(alike, among)]
    user, row = picked(here, user, row)

    def summed(max_norm: float) -> tuple[Tensor, Tensor]:
        return _summed(space, recorded, among, max_norm)

    return BatchRows(users, user, row, alike, summed, rounding)


def broken_alone(
    tables: Iterable[str],
    parts: Sequence[Any],
    recorded: Sequence[Recorded],
    again: Callable[[Any], Recorded],
    alone: Alone = select_alone,
) -> tuple[list[Any], list[Recorded]]:
    """Take users out of their micro-batch whose gradient of these tables is not finite there, and record each alone.

    As `add_rest_alone` does for the sum: others' padding may be what broke it, and what counts for a user must not
    depend on others.
    """
    all_parts, all_recorded = list(parts), list(recorded)
    for part, own in zip(parts, recorded, strict=True):
        uses = [use for name in tables for use in own.contributions.get(name, ())]
        broken = ~torch.stack([use.terms() for use in uses]).isfinite().all(0) if uses else torch.zeros(0)
        if len(part) > 1 and bool(broken.any()):
            for use in (use for every in own.contributions.values() for use in every):
                use.forget(broken)
            all_parts += [alone(part, user) for user in broken.nonzero().flatten().tolist()]
    all_recorded += [again(one) for one in all_parts[len(parts) :]]
    return all_parts, all_recorded


def _look_ups(uses: Iterable[Contribution]) -> list[LookUp]:
    return [use for use in uses if isinstance(use, LookUp)]


def real_pairs(space: RowSpace, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct users and rows of pairs, user · rows + row, without padding."""
    pairs = distinct(pairs)
    user, row = pairs // space.size, pairs % space.size
    real = ~is_among(row, space.padding)
    return user[real], row[real]


def _summed(
    space: RowSpace, recorded: Sequence[Recorded], among: Tensor | None, max_norm: float
) -> tuple[Tensor, Tensor]:
    """Sum the users' gradients of some tables, each user's clipped over all of them together."""
    sums = {name: RowSum(t.parameter.shape, t.parameter.dtype, space.device) for name, t in space.tables.items()}
    left = None if among is None else space.split(among)
    for part in recorded:
        own = {
            name: only(part.contributions[name], None if left is None else left[name])
            for name in sums
            if name in part.contributions
        }
        add_recorded(sums, Recorded(part.losses, own), Clipping("flat", max_norm))
    merged = {name: total.merged() for name, total in sums.items()}
    rows = torch.cat([space.flat(name, rows) for name, (rows, _) in merged.items()])
    norms = torch.cat([values.flatten(1).norm(dim=1) for _, values in merged.values()])
    real = ~is_among(rows, space.padding)
    if among is not None:
        real &= is_among(rows, among)
    return rows[real], norms[real]
