"""From events in the order of a log to histories: grouped by user, in time order, with numbered users and items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dprec.data.arrays.ordering import PlaceOf, dense, dense_parts, stable_order, starts
from dprec.data.ids.keys import IdKeys, identity
from dprec.data.logs.context import ContextColumns
from dprec.data.logs.event_parts import EventContext
from dprec.data.logs.event_store import EventStore, Rows
from dprec.data.logs.histories import Interactions, spans


@dataclass
class Repeats:
    """Counts of repeated events."""

    met_again: int = 0  # events with an item that the user has seen before
    equal_times: int = 0  # events at the same time as the user's event before
    duplicates: int = 0  # events with the same user, item and time as another one


@dataclass(frozen=True)
class _Bucket:
    """Some users' events in order."""

    users: np.ndarray  # (n,) identities, ascending
    lengths: np.ndarray  # (n,)
    items: np.ndarray  # (v,) identities of the items seen, ascending
    visitors: np.ndarray  # (v,) how many of these users saw each of them
    # (1 to 3, e) int32: the events' items, as places in `items`, and perhaps their ages and their context; in a file if
    # the log is long
    events: np.ndarray | Path
    columns: int

    def take(self) -> np.ndarray:
        """The events; deletes their file."""
        if not isinstance(self.events, Path):
            return self.events
        events = np.fromfile(self.events, dtype=np.int32).reshape(self.columns, -1)
        self.events.unlink()
        return events


@dataclass
class Grouping:
    """Sorts the buckets of a store, then joins them.

    Calls `advance` with numbers of events: each event counts once when it is sorted and once when it is placed.
    """

    store: EventStore
    users: IdKeys
    items: IdKeys
    advance: Callable[[int], object] = lambda _: None
    ages: Callable[[np.ndarray], np.ndarray] | None = None  # from times to seconds before the last event, as uint32
    context_columns: ContextColumns | None = None
    repeats: Repeats = field(default_factory=Repeats)
    merged: dict[str, int] = field(default_factory=dict)  # spellings of users' and items' ids

    def run(self) -> Interactions:
        """Users in the order of their ids, their events in time order; events at equal times keep the log's order."""
        buckets, plain_users, plain_items = [], 0, []
        for rows in self.store.buckets():
            plain_users += len(_plain(rows.user, self.users))
            plain_items.append(_plain(rows.item, self.items))
            buckets.append(self._sorted(rows))
            self.advance(len(rows.user))
        users, user_number = self._ordered(self.users, [bucket.users for bucket in buckets])
        items, item_number = self._ordered(self.items, [bucket.items for bucket in buckets])
        self.merged = {
            "user": self.users.say(plain_users, users),
            "item": self.items.say(len(np.unique(np.concatenate(plain_items))), items),
        }
        lengths = np.empty(len(users), dtype=np.int64)
        for bucket in buckets:
            lengths[user_number(bucket.users)] = bucket.lengths
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        item = self._new("items.all", np.int32)
        ages = None if self.ages is None else self._new("ages.all", np.uint32)
        codes = None if self.context_columns is None else self._new("context.all", np.int32)
        item_users = np.zeros(len(items), dtype=np.int64)
        for bucket in buckets:
            events, named = bucket.take(), item_number(bucket.items)
            positions = spans(offsets[user_number(bucket.users)], bucket.lengths)
            item[positions] = named.astype(np.int32)[events[0]]
            item_users[named] += bucket.visitors
            if ages is not None:
                ages[positions] = events[1].view(np.uint32)
            if codes is not None:
                codes[positions] = events[-1]
            self.advance(len(positions))
        item_ids = self.items.in_order(items).to_list()
        user_ids = self.users.in_order(users)
        context = None if self.context_columns is None or codes is None else EventContext(self.context_columns, codes)
        return Interactions(offsets, item, item_ids, user_ids, item_users, ages=ages, context=context)

    def _sorted(self, rows: Rows) -> _Bucket:
        user = identity(rows.user)
        order = stable_order([user, rows.time])
        user, time = user[order], rows.time[order]
        items, places = dense(identity(rows.item[order]))
        new_user, new_time = starts(user), starts(user, time)
        visitors = self._count(new_user, new_time, places, len(items))
        lengths = np.diff(np.append(np.flatnonzero(new_user), len(user)))
        columns = [places]
        if self.ages is not None:
            columns.append(self.ages(time).view(np.int32))
        if rows.codes is not None:
            columns.append(rows.codes[order])
        events = np.empty((len(columns), len(user)), dtype=np.int32)
        for place, column in enumerate(columns):
            events[place] = column
        return _Bucket(rows.keys(user[new_user]), lengths, items, visitors, self._kept(rows, events), len(events))

    def _kept(self, rows: Rows, events: np.ndarray) -> np.ndarray | Path:
        if not self.store.spilled:
            return events
        path = self.store.folder / f"{rows.bucket}.sorted"
        events.tofile(path)
        return path

    def _count(self, new_user: np.ndarray, new_time: np.ndarray, places: np.ndarray, items: int) -> np.ndarray:
        """Count repeats, and how many users saw each item."""
        met = np.sort(np.cumsum(new_user) * items + places)
        once = starts(met)
        self.repeats.met_again += int((~once).sum())
        self.repeats.equal_times += int((~new_time).sum())
        same = ~new_time
        same[:-1] |= same[1:]  # and the one before
        moment, place = np.cumsum(new_time)[same], places[same]
        order = stable_order([moment, place])
        self.repeats.duplicates += int((~starts(moment[order], place[order])).sum())
        return np.bincount(met[once] % items, minlength=items)

    def _ordered(self, ids: IdKeys, found: Sequence[np.ndarray]) -> tuple[np.ndarray, PlaceOf]:
        """The distinct identities, and a function from identities to their numbers."""
        distinct, place_of = dense_parts(found)
        numbers = ids.numbered(distinct).to_numpy()
        return distinct, lambda keys: numbers[place_of(keys)]

    def _new(self, name: str, kind: type[np.integer[Any]]) -> np.ndarray:
        if not self.store.spilled:
            return np.empty(self.store.events, dtype=kind)
        return np.memmap(self.store.folder / name, dtype=kind, mode="w+", shape=(self.store.events,))


def _plain(keys: np.ndarray, ids: IdKeys) -> np.ndarray:
    """The distinct identities that are written as plain numbers."""
    return np.unique(keys[(keys & 3) == 0]) if ids.respelled else np.empty(0, dtype=np.int64)
