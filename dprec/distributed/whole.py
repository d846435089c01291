"""Sharded tables made whole in the first process, piece by piece, for a checkpoint that any number of them can load."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dprec.distributed.ranks import Ranks
from dprec.distributed.sharded import LookedUp, ShardedTable, bounds, own_rows

PIECE = 1 << 20  # numbers that are sent at once

Room = Callable[[Sequence[int], torch.dtype], Tensor]  # makes a tensor of a shape, in memory or in a file


def make_whole(held: Any, ranks: Ranks, room: Room) -> Any:
    """Return what is held with whole tables for sharded ones, empty ones but in the first process.

    All processes must ask at once, of the same things in the same order. What is held stays as it is: some of it is
    what an optimizer works with.
    """
    if isinstance(held, ShardedTable):
        return whole(held, ranks, room)
    if isinstance(held, LookedUp):
        return own_rows(held)[0]
    if isinstance(held, MutableMapping):
        copied = copy.copy(held)  # with what torch writes on a state_dict
        for key, value in held.items():
            copied[key] = make_whole(value, ranks, room)
        return copied
    if type(held) in (list, tuple):
        return type(held)(make_whole(each, ranks, room) for each in held)
    return held


def whole(table: ShardedTable, ranks: Ranks, room: Room) -> Tensor:
    """Return a table's rows, sent by their owners one after the other; no rows but in the first process."""
    own, first = table.shard.values, table.shard.first
    made = room(table.shape, table.dtype) if ranks.first else own.new_empty(0)
    step = max(1, PIECE // max(1, table.shape[1:].numel()))
    for owner, (start, stop) in enumerate(pairwise(bounds(table.shape[0], ranks.size))):
        for begin in range(start, stop, step):
            end = min(begin + step, stop)
            mine, taken = owner == ranks.number, end - begin if ranks.first else 0
            part = own[begin - first : end - first] if mine else own.new_empty(taken, *own.shape[1:])
            ranks.to_first(part, owner)
            if ranks.first:
                made[begin:end] = part
    return made
