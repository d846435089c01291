"""What users do to the rows of some tables: in one batch, and in all training data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dprec.accounting.release import Portion
from dprec.errors import MixedUsers
from dprec.gradients.clipping import Clipping, Recorded, add_recorded
from dprec.gradients.contribution import Contribution, Rows, SharedRows
from dprec.gradients.layout import layout_of
from dprec.gradients.row_sum import RowSum
from dprec.gradients.tape import Tape, select_users
from dprec.sparsity.rows.strategy import BatchRows
from dprec.sparsity.rows.tables import RowSpace
from dprec_kernels.ordering import distinct, is_among, picked

AT_ONCE = 8192  # users whose look-ups are counted together


class Users(Protocol):
    """Users whom training draws from."""

    def __len__(self) -> int:
        """Return how many there are, numbered from 0."""

    def of(self, users: Sequence[int]) -> list[Any]:
        """Return the micro-batches of these users alone, as training would get them."""


def only(uses: Iterable[Contribution], rows: Tensor | None) -> list[Contribution]:
    """Return what is left of a table's uses, all of them look-ups, where no other rows than these may change."""
    if rows is None:
        return list(uses)
    return [use.only(rows) for use in uses if isinstance(use, (Rows, SharedRows))]


def batch_rows(
    space: RowSpace, recorded: Sequence[Recorded], among: Tensor | None, declared: Mapping[str, Tensor] | None = None
) -> BatchRows:
    """Return what the users of these micro-batches look up; None stands for all rows of the space.

    A row counts for a user whose gradient is not zero there. What is read for padding, or for positions that only a
    longer history has, depends on who else is in the micro-batch; its gradient, which is zero, does not. The rows of
    tables that are `declared` change whoever is drawn, and count for nobody.
    """
    shared = [space.flat(name, rows) for name, rows in (declared or {}).items() if name in space.tables]
    alike = distinct(torch.cat(shared)) if shared else torch.zeros(0, dtype=torch.int64)
    pairs, users = [torch.zeros(0, dtype=torch.int64)], 0
    for part in recorded:
        for name in space.tables:
            for use in part.contributions.get(name, ()):
                if isinstance(use, (Rows, SharedRows)):
                    user, ids = _moved(use, alike - space.start(name))
                    pairs.append((user + users) * space.size + space.flat(name, ids))
        users += part.users
    user, row = _kept(space, torch.cat(pairs))
    here = ~is_among(row, alike)
    if among is not None:
        here &= is_among(row, among)
        alike = alike[is_among(alike, among)]
    user, row = picked(here, user, row)

    def summed(max_norm: float) -> tuple[Tensor, Tensor]:
        return _summed(space, recorded, among, max_norm)

    return BatchRows(users, user, row, alike, summed)


def broken_alone(
    tables: Iterable[str], parts: Sequence[Any], recorded: Sequence[Recorded], again: Callable[[Any], Recorded]
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
            all_parts += [select_users(part, [user]) for user in broken.nonzero().flatten().tolist()]
    all_recorded += [again(alone) for alone in all_parts[len(parts) :]]
    return all_parts, all_recorded


def look_ups(space: RowSpace, module: Any, trained: Mapping[str, nn.Parameter], users: Users) -> Iterator[Portion]:
    """Yield which rows of a space the users look up in training, each row of a user once.

    Refused is a model in which what a user looks up depends on who else is in the micro-batch.
    """
    before = 0
    for start in range(0, len(users), AT_ONCE):
        for part in users.of(range(start, min(start + AT_ONCE, len(users)))):
            user, row = _looked_up(space, module, trained, part)
            for one in sorted({0, len(part) // 2, len(part) - 1}):  # the longest and the shortest
                if not torch.equal(row[user == one], _looked_up(space, module, trained, select_users(part, [one]))[1]):
                    raise MixedUsers(
                        "which rows of a table a user looks up depends on who else is in the batch, so they cannot be "
                        "counted: declare padding_idx for tables that are read for padding"
                    )
            yield Portion((before + user).numpy(), row.numpy(), np.ones(len(row)))
            before += len(part)


def _looked_up(space: RowSpace, module: Any, trained: Mapping[str, nn.Parameter], part: Any) -> tuple[Tensor, Tensor]:
    """Return the distinct pairs of a user of a micro-batch and a row that the user looks up."""
    pairs = [torch.zeros(0, dtype=torch.int64)]

    def read(name: str, ids: Tensor | None) -> None:
        if name in space.tables and ids is not None and layout_of(ids) is not None:
            user = torch.arange(len(part), device=ids.device).unsqueeze(1)
            pairs.append((user * space.size + space.flat(name, ids.reshape(len(part), -1))).flatten())

    with torch.no_grad(), Tape(trained, len(part), read=read) as tape:
        tape.watch(part)
        module.losses(part)
    return _kept(space, torch.cat(pairs))


def _moved(use: Rows | SharedRows, besides: Tensor) -> tuple[Tensor, Tensor]:
    """Return the users and the rows of the reads that have a gradient.

    It must be finite, since what is not makes even padding's not finite. Of rows that all users read alike, those
    `besides`, which ascend, are left out.
    """
    if isinstance(use, Rows):
        values = use.values.reshape(*use.ids.shape, -1)
        if values.shape[1] and values.stride(1) == 0:
            values = values[:, :1]  # a bag's, which all its reads share
        largest = torch.linalg.vector_norm(values, ord=torch.inf, dim=2)
        moved = ((largest > 0) & (largest < torch.inf)).expand(use.ids.shape)
        return moved.nonzero()[:, 0], use.ids[moved]
    use = use.only(use.ids[~is_among(use.ids, besides)].unique())
    if not len(use.ids):
        return use.ids, use.ids
    largest = use.left.abs() * use.right.abs().amax(2, keepdim=True)  # (B, T, K), by positions: none hides another
    user, read = ((largest > 0) & (largest < torch.inf)).any(1).nonzero().unbind(1)
    return user, use.ids[read]


def _kept(space: RowSpace, pairs: Tensor) -> tuple[Tensor, Tensor]:
    pairs = distinct(pairs)
    user, row = pairs // space.size, pairs % space.size
    real = ~is_among(row, space.padding)
    return user[real], row[real]


def _summed(
    space: RowSpace, recorded: Sequence[Recorded], among: Tensor | None, max_norm: float
) -> tuple[Tensor, Tensor]:
    """Sum the users' gradients of some tables, each user's clipped over all of them together."""
    sums = {name: RowSum(t.parameter.shape, t.parameter.dtype) for name, t in space.tables.items()}
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
