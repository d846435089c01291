"""Every user's items in time order, in flat arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import polars as pl

from dprec.data.logs.context import ContextColumns
from dprec.data.logs.store import ColumnStore, forget, stored

Split = Literal["validation", "test"]


@dataclass(frozen=True)
class EventContext:
    """Each event's context beside its item: one number an event, from which the columns decode the values."""

    columns: ContextColumns
    codes: np.ndarray  # (E,) int32


@dataclass(frozen=True)
class Interactions:
    """Events of a log: grouped by user, in time order inside a user, items numbered by `item_ids`."""

    offsets: np.ndarray  # (N + 1,) int64: user u's events are offsets[u] to offsets[u + 1]
    item: np.ndarray  # (E,) int32, positions in item_ids
    item_ids: list[str]
    read_user_ids: Callable[[], pl.Series] | None = None  # (N,) text; a prepared log does not hold them in memory
    item_users: np.ndarray | None = None  # (items,) how many users saw each item
    facts: Mapping[str, Any] = field(default_factory=dict)  # about the log, and the rows left out of it
    # (E,) uint32: seconds from each event to the last of the log, if its times have a unit
    ages: np.ndarray | None = None
    context: EventContext | None = None
    folder: Path | None = None  # for arrays as long as the log; None: they stay in memory
    rule: HeldOutRule | None = None  # decides which events are held out from training
    away: Interactions | None = None  # events of users who are held out entirely; these events exclude them

    @classmethod
    def of(cls, user: np.ndarray, item: np.ndarray, item_ids: list[str]) -> Interactions:
        """Make events from each event's user number, ascending."""
        return cls(np.concatenate([[0], np.cumsum(np.bincount(user))]), item, item_ids)

    def __len__(self) -> int:
        return len(self.item)

    @property
    def user(self) -> np.ndarray:  # (E,) int32, ascending
        return np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int32), np.diff(self.offsets))

    def ids_of(self, users: np.ndarray) -> list[str]:
        """The raw ids of some users; their numbers if the data has none, as invented data."""
        ids = self.user_ids
        return [str(user) for user in users] if ids is None else ids.gather(users).to_list()

    @property
    def user_ids(self) -> pl.Series | None:
        """(N,) text; None if the data has no ids, as invented data."""
        return None if self.read_user_ids is None else self.read_user_ids()

    def of_users(self, chosen: np.ndarray) -> Interactions:
        """The events of some users, (N,) bool, who keep their ids; without `ages`."""
        read, which, store = self.read_user_ids, np.flatnonzero(chosen), ColumnStore(self.folder, nameless=True)
        for portion in self.portions():
            mine = chosen[portion.users][portion.user]
            store.add(**{name: column[mine] for name, column in portion.columns.items()})
        columns = store.whole()
        return replace(
            self,
            offsets=np.concatenate([[0], np.cumsum(np.diff(self.offsets)[chosen])]),
            item=columns["items"],
            read_user_ids=lambda: pl.Series(which).cast(pl.String) if read is None else read().gather(which),
            item_users=None,
            ages=None,
            context=self.context_of(columns),
        )

    @property
    def _columns(self) -> dict[str, np.ndarray]:
        return {"items": self.item} | ({} if self.context is None else {"codes": self.context.codes})

    def context_of(self, columns: Mapping[str, np.ndarray]) -> EventContext | None:
        """The context of events that were taken from the columns of portions."""
        return None if self.context is None else replace(self.context, codes=columns["codes"])

    @cached_property
    def lengths(self) -> np.ndarray:  # (N,) each user's events for training
        if self.rule is None:
            return np.diff(self.offsets)
        return np.concatenate([portion.lengths(portion.training) for portion in self.portions()])

    def portions(self, rows: int = 2**22) -> Iterator[Portion]:
        """Yield the events of some users at a time: as many as fit into `rows` rows, at least one."""
        for first, end in blocks(self.offsets, rows):
            place = slice(self.offsets[first], self.offsets[end])
            user = np.repeat(np.arange(end - first, dtype=np.int32), np.diff(self.offsets[first : end + 1]))
            columns = {name: column[place] for name, column in self._columns.items()}
            part = np.zeros(len(user), dtype=np.uint8)
            if self.rule is not None:
                part = self.rule.part(self, place, user)
                if self.rule.reorders:
                    order = np.lexsort((part, user))
                    part, columns = part[order], {name: column[order] for name, column in columns.items()}
            yield Portion(slice(first, end), user, part, columns)
            forget(self.offsets, *self._columns.values())


class Portion(NamedTuple):
    """The events of some users, user by user, and each user's parts (training, validation, test) in order."""

    users: slice
    user: np.ndarray  # (n,) the user of each event, from 0 for the first of them
    part: np.ndarray  # (n,) uint8: 0 is training, 1 validation, 2 the test
    columns: dict[str, np.ndarray]

    @property
    def items(self) -> np.ndarray:
        return self.columns["items"]

    @property
    def training(self) -> np.ndarray:  # (n,) bool
        return self.part == 0

    def lengths(self, chosen: np.ndarray) -> np.ndarray:
        """(users,) how many of the `chosen` events (n,) belong to each user."""
        return np.bincount(self.user[chosen], minlength=self.users.stop - self.users.start)


class HeldOutRule(Protocol):
    """Decides which events of a log are held out."""

    reorders: bool  # whether a held-out event may come before one for training

    def part(self, events: Interactions, place: slice, user: np.ndarray) -> np.ndarray:
        """Return the part (n,) uint8 of consecutive events: all events of some users; `user` numbers them from 0."""


@dataclass(frozen=True)
class Histories:
    """Items of user u in time order: `items[starts[u]:ends[u]]`. Of a long log these arrays are mapped from files."""

    starts: np.ndarray  # (N,) int64, ascending
    ends: np.ndarray  # (N,) int64
    items: np.ndarray  # (E,) int32, ids 1..V, user by user; items of no history may lie between them
    folder: Path | None = None  # for arrays as long as the log
    context: EventContext | None = None  # of the same events

    @classmethod
    def joined(
        cls, offsets: np.ndarray, items: np.ndarray, folder: Path | None = None, context: EventContext | None = None
    ) -> Histories:
        """Histories with nothing between them: of user u from offsets[u] to offsets[u + 1]."""
        offsets = stored(offsets, folder)
        return cls(offsets[:-1], offsets[1:], items, folder, context)

    @property
    def users(self) -> int:
        return len(self.starts)

    @property
    def lengths(self) -> np.ndarray:  # (N,) int64
        return np.asarray(self.ends - self.starts)

    def of(self, user: int) -> np.ndarray:
        return self.items[self.starts[user] : self.ends[user]]

    def portions(self, rows: int = 2**22) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield all items (n,) and their users (n,): as many whole users at a time as fit into `rows`, at least one.

        >>> everybody = Histories(np.array([0, 3, 5]), np.array([2, 5, 6]), np.array([7, 8, 0, 7, 9, 5]))
        >>> [(users.tolist(), items.tolist()) for users, items in everybody.portions(rows=5)]
        [([0, 0, 1, 1], [7, 8, 7, 9]), ([2], [5])]
        """
        first = 0
        while first < self.users:
            last = max(first + 1, int(np.searchsorted(self.ends, self.starts[first] + rows, side="right")))
            starts = self.starts[first:last]
            lengths = np.asarray(self.ends[first:last] - starts)
            yield np.repeat(np.arange(first, last), lengths), self.items[spans(starts, lengths)]
            self.forget()
            first = last

    def forget(self) -> None:
        """Release the memory of this process that holds parts of mapped files."""
        forget(self.starts, self.ends, self.items, *(() if self.context is None else (self.context.codes,)))


def spans(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers first, first + 1, ... of each span.

    >>> spans(np.array([10, 3]), np.array([2, 3]))
    array([10, 11,  3,  4,  5])
    """
    ends = np.cumsum(lengths)
    return np.repeat(first - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


def blocks(offsets: np.ndarray, rows: int = 2**22) -> Iterator[tuple[int, int]]:
    """Yield ranges of users (first, end), as many as fit into `rows` rows, but at least one."""
    first, users = 0, len(offsets) - 1
    while first < users:
        end = max(first + 1, int(np.searchsorted(offsets, offsets[first] + rows, side="right")) - 1)
        yield first, end
        first = end


def visits(events: Interactions, rows: int = 2**22) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield every pair of a user and an item that the user saw, once, latest first: (n,), (n,) for a few users each.

    Held-out events are left out.

    >>> events = Interactions.of(np.array([0, 0, 0, 1]), np.array([4, 2, 4, 2]), list("abcde"))
    >>> [(user.tolist(), item.tolist()) for user, item in visits(events)]
    [([0, 0, 1], [4, 2, 2])]
    """
    for portion in events.portions(rows):
        user, item = (column[portion.training][::-1].astype(np.int64) for column in (portion.user, portion.items))
        _, kept = np.unique(user * len(events.item_ids) + item, return_index=True)
        kept.sort()
        kept = kept[np.argsort(user[kept], kind="stable")]
        yield portion.users.start + user[kept], item[kept]
