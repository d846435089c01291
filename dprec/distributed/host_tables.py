"""Tables that stay in the host's memory while the network is on a card: a look-up brings the rows that it reads.

Such a table says that it is on the CPU, as its rows are, so whatever is kept of its rows lies there, and steps, noise
and debts are the CPU's. Only look-ups by ids of another device know better. Their ids go to the host, where each row is
found once; the rows go to the card, as a small table that the look-up is made in. Several tables that are about to be
read take one copy of ids, one of values and one of places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dprec.distributed.sharded import LookedUp, Shard

CPU = torch.device("cpu")


class Asked:
    """Ids of a card, and what the host knows of them. The same memory, unchanged since, is not asked for again."""

    def __init__(self, ids: Tensor, found: Tensor) -> None:
        self._ids, self._version = ids, _version(ids)  # which holds the memory
        self.rows = torch.from_numpy(np.unique(found.numpy()))  # distinct, ascending
        self.places = torch.searchsorted(self.rows, found)  # of each id among them

    def by(self, ids: Tensor) -> bool:
        one, other = self._ids, ids
        same = one.is_contiguous() and other.is_contiguous() and _memory(one) == _memory(other)  # in any shape
        return (one is other or same) and _version(other) == self._version


@dataclass
class OnTheWay:
    """What is known of look-ups that are being made: scratch of the run's, and no state of the model's."""

    asked: Asked | None = None  # last
    brought: tuple[Asked, Tensor, Tensor] | None = None  # rows and places on a card, for the look-up that comes
    heard: list[Tensor] | None = None  # rows that were read, while somebody listens


class HostRows(Shard):
    """All rows of a table, in the host's memory, and those that were brought to a card for the look-up that comes."""

    def __init__(self, values: Tensor) -> None:
        super().__init__(values=values)
        self.way = OnTheWay()

    def copied(self) -> HostRows:
        return HostRows(self.values.clone())

    def with_values(self, values: Tensor) -> HostRows:
        return HostRows(values)

    def place_for(self, device: torch.device) -> torch.device:
        return CPU

    def known(self, ids: Tensor) -> Asked | None:
        """Return what is known of these ids, if they were the last that were asked for."""
        return self.way.asked if self.way.asked is not None and self.way.asked.by(ids) else None

    def hear(self, asked: Asked) -> None:
        """Hear which rows are about to be read."""
        self.way.asked = asked
        if self.way.heard is not None:
            self.way.heard.append(asked.rows)

    def bring(self, asked: Asked, values: Tensor, places: Tensor) -> None:
        """Answer the next look-up by these ids with these rows, which are on a card."""
        self.way.brought = asked, values, places

    def read(self, ids: Tensor, padding: int) -> tuple[Tensor, Tensor, int]:
        if ids.device == self.values.device:
            return self.values, ids, padding
        if self.way.brought is None or not self.way.brought[0].by(ids):
            _bring([self], [ids])
        assert self.way.brought is not None
        (asked, values, places), self.way.brought = self.way.brought, None  # rows may change before they are read again
        if self.way.heard is None:
            self.way.asked = None  # and so may ids outside of a step
        at = int(torch.searchsorted(asked.rows, padding)) if padding >= 0 else len(asked.rows)
        there = at < len(asked.rows) and int(asked.rows[at]) == padding
        return values, places.view(ids.shape), at if there else -1

    def put(self, rows: Tensor, values: Tensor) -> None:
        self.way.brought = None
        self.values[rows.to(CPU)] = values.to(CPU)

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Note which rows are read in here."""
        self.way = OnTheWay(heard=[])
        try:
            yield
        finally:
            self.way = OnTheWay()

    def heard_among(self, rows: Tensor) -> Tensor:
        """Return those of some rows, ascending, that were read since somebody listens; all where nobody does."""
        if self.way.heard is None or not len(rows):
            return rows
        heard = torch.from_numpy(np.unique(torch.cat([rows[:0], *self.way.heard]).numpy()))
        place = torch.searchsorted(rows, heard).clamp_(max=len(rows) - 1)
        return heard[rows[place] == heard]


class HostTable(LookedUp):
    """A table in the host's memory that a network on a card looks up in."""

    shard: HostRows
    kind = "a table in host memory"
    only = "bring rows to the network's device"
    setting = "model.tables_on"

    @staticmethod
    def of(values: Tensor) -> HostTable:
        return HostTable(values.shape, HostRows(values), values.dtype)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.shard.values.__reduce_ex__(protocol)  # a plain table, which needs no card


def on_host(parameters: Mapping[str, nn.Parameter]) -> dict[str, HostTable]:
    """Return those parameters that are tables in host memory, away from the network."""
    return {name: p for name, p in parameters.items() if isinstance(p, HostTable)}  # type: ignore[misc]


def network_device(parameters: Iterable[Tensor]) -> torch.device:
    """Return where losses are computed: where the first parameter is that does not stay on the host.

    >>> network_device([HostTable.of(torch.zeros(2, 1)), torch.zeros(1, device="meta")])
    device(type='meta')
    """
    return next((each.device for each in parameters if not isinstance(each, HostTable)), CPU)


def asked(tables: Sequence[HostTable], ids: Sequence[Tensor]) -> list[Tensor]:
    """Return which rows of each table are read by these ids: distinct ones, ascending, on the host."""
    return [own.rows for own in _asked([table.shard for table in tables], ids)]


def bring(tables: Sequence[Tensor], ids: Sequence[Tensor]) -> None:
    """Bring rows of tables in host memory to where these ids are, which are about to look them up."""
    alike: dict[Any, list[tuple[HostRows, Tensor]]] = {}  # what one copy can hold
    for table, own in zip(tables, ids, strict=True):
        if isinstance(table, HostTable) and own.device != CPU:
            alike.setdefault((table.dtype, own.device), []).append((table.shard, own))
    for some in alike.values():
        _bring([shard for shard, _ in some], [own for _, own in some])


@contextmanager
def hearing(tables: Iterable[HostTable]) -> Iterator[None]:
    """Note which rows of these tables are read in here."""
    with ExitStack() as within:
        for table in tables:
            within.enter_context(table.shard.hearing())
        yield


def _asked(shards: Sequence[HostRows], ids: Sequence[Tensor]) -> list[Asked]:
    known = [shard.known(own) for shard, own in zip(shards, ids, strict=True)]
    new = [place for place, own in enumerate(known) if own is None]
    if new:
        flat = torch.cat([ids[place].detach().flatten().long() for place in new]).to(CPU)  # the one wait
        for place, found in zip(new, flat.split([ids[place].numel() for place in new]), strict=True):
            known[place] = Asked(ids[place], found)
    each = [own for own in known if own is not None]
    for shard, own in zip(shards, each, strict=True):
        shard.hear(own)
    return each


def _bring(shards: Sequence[HostRows], ids: Sequence[Tensor]) -> None:
    known, device = _asked(shards, ids), ids[0].device
    rows = [shard.values.detach().index_select(0, own.rows) for shard, own in zip(shards, known, strict=True)]
    values = _sent(torch.cat([each.flatten() for each in rows]), device).split([each.numel() for each in rows])
    places = _sent(torch.cat([own.places for own in known]), device).split([len(own.places) for own in known])
    for shard, asked_for, own, value, place in zip(shards, known, rows, values, places, strict=True):
        shard.bring(asked_for, value.view(own.shape), place)


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor of the host to a card, which Python does not wait for."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


def _version(ids: Tensor) -> int:
    return 0 if ids.is_inference() else ids._version


def _memory(ids: Tensor) -> tuple[int, int, torch.dtype]:
    return ids.data_ptr(), ids.numel(), ids.dtype
