"""Which rows of some tables the users of a batch read, and their gradients there."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dprec.distributed.ranks import Ranks
from dprec.gradients.clipping import Clipping, UserGradients, clip_and_add
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.look_ups import LookUp, Rows, of_columns
from dprec.gradients.row_sum import RowSum
from dprec.gradients.uses.batches import Alone, batch_tensors, select_alone
from dprec.sparsity.rows.kinds import BatchRows
from dprec.sparsity.rows.tables import RowSpace, Table
from dprec_kernels.ordering import distinct, is_among, picked
from dprec_kernels.paths import host_readable
from dprec_kernels.tables import to_device


def only(uses: Iterable[Contribution], rows: Tensor | None) -> list[Contribution]:
    """Return a table's uses, all of them look-ups, without gradients of rows other than `rows`."""
    if rows is None:
        return list(uses)
    return [use.only(rows.to(use.ids.device)) for use in _look_ups(uses)]


def batch_rows(
    space: RowSpace,
    recorded: Sequence[UserGradients],
    among: Tensor | None,
    declared: Mapping[str, Tensor] | None = None,
    rounding: float = 0.0,
    ranks: Ranks | None = None,
) -> BatchRows:
    """Return what the users of these micro-batches look up; `among` None stands for all rows of the space.

    A row counts for a user who reads it, with or without a gradient: rounding, and so other users, may decide whether
    terms cancel to 0. Reads for padding, or for positions that only a longer history has, are not the user's own. So a
    row without a gradient counts only for users who are known to be `unpadded`; other users with such rows are recorded
    alone before (`split_by_user`). Rows that are `declared` change in every step, and count for no user. With `ranks`,
    users are those of all processes, numbered one process after the other.
    """
    ranks = ranks or Ranks()
    on_host = ranks.size == 1 and bool(recorded) and all(part.host_reads is not None for part in recorded)
    tables = space
    if on_host:
        space = space.on(torch.device("cpu"))
    left = None if among is None else among.to(space.device)
    shared = [space.flat(n, rows.to(space.device)) for n, rows in (declared or {}).items() if n in space.tables]
    alike = distinct(torch.cat(shared)) if shared else space.no_rows
    pairs, users = [space.no_rows], 0
    for part in recorded:
        reads = (part.host_reads or {}) if on_host else part.contributions
        for name in space.tables:
            for use in _look_ups(reads.get(name, ())):
                besides = (alike - space.start(name)).to(use.ids.device)
                if not _known_to_be_all(part.unpadded):  # users known to be unpadded count for all that they read
                    user, ids = (each.to(space.device) for each in use.reads_with_gradient(besides))
                    pairs.append((user + users) * space.size + space.flat(name, ids))
                if part.unpadded is not None:
                    unpadded = part.unpadded.to(use.ids.device).nonzero().flatten()
                    user, ids = (each.to(space.device) for each in use.read(unpadded, besides))
                    pairs.append((user + users) * space.size + space.flat(name, ids))
        users += part.batch_size
    user, row = real_pairs(space, torch.cat(pairs))
    here = ~is_among(row, alike)
    if left is not None:
        here &= is_among(row, left)
        alike = alike[is_among(alike, left)]
    user, row = picked(here, user, row)

    def summed(max_norm: float) -> tuple[Tensor, Tensor]:
        return _summed(tables, recorded, among, max_norm, ranks)

    if ranks.size > 1:
        counts = [int(count) for count in ranks.gathered(torch.tensor([users]))]
        user = torch.cat(ranks.gathered(user + sum(counts[: ranks.number])))
        row, users = torch.cat(ranks.gathered(row)), sum(counts)
    found = BatchRows(users, user, row, alike, summed, rounding)
    if not on_host:
        return found
    user, row, alike = (to_device(each, tables.device) for each in (user, row, alike))
    return BatchRows(users, user, row, alike, summed, rounding, host=found)


def split_by_user(
    tables: Iterable[str],
    pieces: Sequence[tuple[Any, UserGradients]],
    again: Callable[[Any], UserGradients],
    alone: Alone = select_alone,
    without_gradient: Callable[[UserGradients], Tensor] = lambda own: own.losses.new_zeros(own.batch_size) != 0,
) -> list[tuple[Any, UserGradients]]:
    """Record users alone whose gradient of these tables is not finite in their micro-batch.

    Padding for others may have caused it, and a user's counts must not depend on others (as in `add_rest_alone`). The
    same holds for users who read rows `without_gradient`, if padding for others is among their reads.
    """
    every_table, retaken = list(tables), []
    for part, own in pieces:
        uses = [use for name in every_table for use in own.contributions.get(name, ())]
        broken, somebody = copy_reads_to_host(every_table, own, _somebody(part, own))
        if not uses or len(part) == 1:
            own.unpadded = somebody
            continue
        if broken is None:
            broken = ~torch.stack([use.terms() for use in _look_ups(uses)]).isfinite().all(0)
        broken[own.real :] = False  # rows that fill up the batch are no users
        own.unpadded, trimmed = without_gradient(own) & ~broken & somebody, {}
        for user in own.unpadded.nonzero().flatten().tolist():
            one = alone(part, user)
            if _shapes(one) != _shapes(part):
                own.unpadded[user], broken[user], trimmed[user] = False, True, one
        if bool(broken.any()):
            there = broken.to(own.losses.device)
            own.losses = own.losses.masked_fill(there, math.nan)  # each counts once, alone
            for use in (use for every in own.contributions.values() for use in every):
                use.forget(there)
            for use in (use for every in (own.host_reads or {}).values() for use in every):
                use.forget(broken)
            retaken += [
                trimmed[user] if user in trimmed else alone(part, user) for user in broken.nonzero().flatten().tolist()
            ]
    for name in _read_by_place(every_table, pieces):  # the same for any histories: the warning is not private
        _warn_of_padding(name)
    every = list(pieces)
    for one in retaken:
        every.append((one, again(one)))
        every[-1][1].unpadded = copy_reads_to_host(every_table, every[-1][1], _somebody(*every[-1]))[1]
    return every


def _somebody(part: Any, own: UserGradients) -> Tensor | None:
    """Return (B,) True for users with a history: an empty one must add nothing to a count. None: all have one."""
    empty = getattr(part, "empty", None)
    if empty is not None and empty.shape == (own.real,):
        return torch.cat([~empty, empty.new_zeros(own.batch_size - own.real)])
    return own.is_real if own.real < own.batch_size else None


def _read_by_place(tables: Iterable[str], pieces: Sequence[tuple[Any, UserGradients]]) -> list[str]:
    """Return the tables in which all users of a micro-batch read exactly the same rows, such as positions."""
    uses = [
        (name, use) for _, own in pieces if own.real > 1 for name in tables for use in own.contributions.get(name, ())
    ]
    return list(dict.fromkeys(name for name, use in uses if isinstance(use, Rows) and use.ids.stride(0) == 0))


@functools.cache
def _warn_of_padding(table: str) -> None:
    warnings.warn(
        f"privacy.sparsity: all users read the same rows of '{table}', so some are recorded one by one, which is slow: "
        "name the other tables in the strategy's `tables`",
        UserWarning,
        stacklevel=2,
    )


def without_gradient(space: RowSpace, recorded: UserGradients, declared: Mapping[str, Tensor] | None = None) -> Tensor:
    """Return (B,) True for users who read a row, neither padding nor declared, without a gradient there."""
    space = space if recorded.host_reads is None else space.on(torch.device("cpu"))
    everybody = torch.arange(recorded.batch_size, device=space.device)
    found = torch.zeros_like(everybody, dtype=torch.bool)
    for name, table in space.tables.items():
        besides = (declared or {}).get(name, space.no_rows).to(space.device)
        uses = _look_ups((recorded.contributions if recorded.host_reads is None else recorded.host_reads).get(name, ()))
        if all(_moves_all_it_reads(use, besides, table) for use in uses):
            continue
        pairs: list[list[Tensor]] = [[space.no_rows], [space.no_rows]]
        for use in uses:
            own = besides.to(use.ids.device)
            for place, each in enumerate((use.read(everybody.to(own.device), own), use.reads_with_gradient(own))):
                user, ids = (part.to(space.device) for part in each)
                there = ~is_among(ids, besides)
                pairs[place].append(user[there] * space.size + space.flat(name, ids[there]))
        read, nonzero = (u * space.size + row for u, row in (real_pairs(space, torch.cat(each)) for each in pairs))
        found[read[~is_among(read, nonzero)] // space.size] = True
    return found


def _moves_all_it_reads(use: LookUp, besides: Tensor, table: Table) -> bool:
    """Whether each read is known to have a gradient, except padding and rows `besides`; never waits for a GPU."""
    if not (isinstance(use, Rows) and host_readable(use.ids)):
        return False
    never = distinct(torch.cat([besides, torch.tensor(sorted(table.padding), dtype=torch.int64)]))
    return not bool((~use.with_gradient() & ~is_among(use.ids, never)).any())


def _known_to_be_all(users: Tensor | None) -> bool:
    """Whether these are known to be all users; never waits for a GPU."""
    return users is not None and host_readable(users) and bool(users.all())


def _shapes(part: Any) -> list[torch.Size]:
    return [tensor.shape[1:] for tensor in batch_tensors(part)]


def _look_ups(uses: Iterable[Contribution]) -> list[LookUp]:
    return [use for use in uses if isinstance(use, LookUp)]


def real_pairs(space: RowSpace, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct users and rows of pairs, user · rows + row, without padding."""
    pairs = distinct(pairs)
    user, row = pairs // space.size, pairs % space.size
    real = ~is_among(row, space.padding)
    return user[real], row[real]


def _summed(
    space: RowSpace, recorded: Sequence[UserGradients], among: Tensor | None, max_norm: float, ranks: Ranks
) -> tuple[Tensor, Tensor]:
    """Sum the users' gradients of some tables; each user is clipped over all of them together."""
    sums = {name: RowSum(t.parameter.shape, t.parameter.dtype, space.device) for name, t in space.tables.items()}
    left = None if among is None else space.split(among)
    for part in recorded:
        own = {
            name: only(part.contributions[name], None if left is None else left[name])
            for name in sums
            if name in part.contributions
        }
        clip_and_add(sums, UserGradients(part.losses, own, part.real), Clipping("flat", max_norm))
    for total in sums.values():
        total.gather_(ranks)
    merged = {name: total.merged() for name, total in sums.items()}
    rows = torch.cat([space.flat(name, rows) for name, (rows, _) in merged.items()])
    norms = torch.cat([values.flatten(1).norm(dim=1) for _, values in merged.values()])
    real = ~is_among(rows, space.padding)
    if among is not None:
        real &= is_among(rows, among)
    return rows[real], norms[real]


def copy_reads_to_host(
    tables: Iterable[str], recorded: UserGradients, somebody: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """Copy to the CPU which rows of these tables the users read, and which reads have a gradient.

    Return, on the CPU, (B,) True for users whose gradient of the tables is not finite, and (B,) `somebody`. The first
    is None if the losses are on the CPU already, or a table is used otherwise than by each user's own rows.
    """
    uses = [(name, use) for name in tables for use in recorded.contributions.get(name, ())]
    own = [use for _, use in uses if isinstance(use, Rows)]
    if not own or len(own) < len(uses) or host_readable(recorded.losses):
        everybody = torch.ones_like(recorded.losses, dtype=torch.bool) if somebody is None else somebody
        return None, everybody
    ids, (nonzero, finite) = torch.cat([use.ids for use in own], 1).long(), _gradients(own)
    of_users = [each.unsqueeze(1) for each in (finite, somebody) if each is not None]
    sent = torch.cat([ids * 2 + nonzero, *of_users], 1).cpu()  # the one wait
    *reads, users = sent.split([*(use.ids.shape[1] for use in own), len(of_users)], 1)
    recorded.host_reads = {}
    for (name, _), each in zip(uses, reads, strict=True):
        recorded.host_reads.setdefault(name, []).append(Rows(each >> 1, (each & 1).float().unsqueeze(2)))
    here = users.new_ones(len(users), dtype=torch.bool) if somebody is None else users[:, 1] != 0
    return users[:, 0] == 0, here


def _gradients(uses: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    """Return (B, N) whether each read has a finite, non-zero gradient, and (B,) whether a user's are all finite."""
    if all(use.ids.shape[1] == 1 and use.values.dtype == torch.float32 for use in uses):
        side_by_side = torch.cat([use.values.reshape(len(use.ids), -1) for use in uses], 1).double()
        widths = [use.values.shape[1:].numel() for use in uses]
        squares = side_by_side.new_zeros(len(side_by_side), len(uses)).index_add_(
            1, of_columns(range(len(uses)), widths, side_by_side.device), side_by_side.square()
        )  # float64 holds all squares of float32
        return (squares > 0) & (squares < torch.inf), (squares.sqrt().float() < torch.inf).all(1)
    nonzero = torch.cat([use.with_gradient() for use in uses], 1)
    return nonzero, torch.stack([use.terms() for use in uses]).isfinite().all(0)
