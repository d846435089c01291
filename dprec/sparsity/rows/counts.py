"""Counts how many users, of all or of a period, look up each row of some tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.contract import Losses, Users
from dprec.errors import MixedUsers, NoRule, line_of
from dprec.gradients.alone import OneUser, one_by_one
from dprec.gradients.layouts.layout import layout_of
from dprec.gradients.tape import Tape
from dprec.gradients.uses.batches import batch_tensors, select_users, selects
from dprec.sparsity.rows.batch_rows import real_pairs
from dprec.sparsity.rows.kinds import Counts
from dprec.sparsity.rows.tables import RowSpace

AT_ONCE = 8192  # users whose look-ups are counted together


def counts_of(
    space: RowSpace, losses: Losses, parameters: Mapping[str, nn.Parameter], users: Users, sums: ExactSums
) -> Counts:
    """Return a function that counts, for a release, the users who look up each row, or draws rows by these counts."""

    def counts(release: Release) -> Tensor:
        found = look_ups(space, losses, parameters, users)
        if release.drawn:
            answer = sums.select(release, places_of(space), space.size, len(users), found)
        else:
            answer = sums(release, space.size, len(users), found)
        return torch.from_numpy(answer).to(space.device)

    return counts


def places_of(space: RowSpace) -> list[np.ndarray]:
    """Return each table's rows, numbered over the space, without padding."""
    padding = space.padding.cpu().numpy()
    rows = [space.start(table.name) + np.arange(table.rows) for table in space]
    return [own[~np.isin(own, padding)] for own in rows]


def look_ups(
    space: RowSpace, losses: Losses, parameters: Mapping[str, nn.Parameter], users: Users
) -> Iterator[Portion]:
    """Yield the rows of a space that users look up in training, each row of a user once.

    Refuse a model in which a user's look-ups depend on the other users in the micro-batch.
    """
    before = 0
    for start in range(0, len(users), AT_ONCE):
        for part in _unpadded(users, range(start, min(start + AT_ONCE, len(users)))):
            user, row = _looked_up(space, losses, parameters, part)
            for one in sorted({0, len(part) // 2, len(part) - 1}):  # the longest and the shortest
                if not torch.equal(
                    row[user == one], _looked_up(space, losses, parameters, select_users(part, [one]))[1]
                ):
                    raise MixedUsers(
                        "which rows of a table a user looks up depends on who else is in the batch: declare "
                        "padding_idx for padding"
                    )
            yield Portion((before + user).cpu().numpy(), row.cpu().numpy(), np.ones(len(row)))
            before += len(part)


def _unpadded(users: Users, group: Sequence[int]) -> list[Any]:
    """Return the micro-batches of a group; of one user each if a batch may hold padding for others."""
    parts = users.of(group)
    if all(map(selects, parts)):
        return parts
    alone = [part for user in group for part in users.of([user])]
    together = {shape for part in parts for shape in _shapes(part)}
    return parts if all(set(_shapes(part)) == together for part in alone) else alone


def _shapes(part: Any) -> Iterator[tuple[int, torch.Size]]:
    return ((place, tensor.shape[1:]) for place, tensor in enumerate(batch_tensors(part)))


def _looked_up(
    space: RowSpace, losses: Losses, parameters: Mapping[str, nn.Parameter], part: Any
) -> tuple[Tensor, Tensor]:
    """Return the distinct pairs of a user of a micro-batch and a row that the user looks up."""
    pairs = [space.no_rows]

    def read(reads: Mapping[str, Tensor | None]) -> None:
        for name, ids in reads.items():
            if name in space.tables and ids is not None and layout_of(ids) is not None:
                user = torch.arange(len(part), device=ids.device).unsqueeze(1)
                own = (user * space.size + space.flat(name, ids.reshape(len(part), -1))).flatten()
                pairs.append(own.to(space.device))

    try:
        with (
            torch.no_grad(),
            Tape(parameters, len(part), read=read) as tape,
        ):
            tape.watch(part)
            losses(part)
    except NoRule as why:
        pairs = [space.no_rows]
        for place, user in enumerate(one_by_one(part, why, line_of(why))):
            pairs += [place * space.size + rows for rows in _read_alone(space, losses, parameters, user)]
    return real_pairs(space, torch.cat(pairs))


def _read_alone(space: RowSpace, losses: Losses, parameters: Mapping[str, nn.Parameter], user: Any) -> list[Tensor]:
    """Return the rows that a user who is alone in this batch looks up."""
    rows: list[Tensor] = []

    def read(reads: Mapping[str, Tensor | None]) -> None:
        known = {name: ids for name, ids in reads.items() if name in space.tables and ids is not None}
        rows.extend(space.flat(name, ids.flatten()).to(space.device) for name, ids in known.items())

    with torch.no_grad(), OneUser(parameters, read):
        losses(user)
    return rows
