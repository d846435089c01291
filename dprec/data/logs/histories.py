"""Every user's items in time order, in flat arrays, and leave-one-out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import polars as pl

from dprec.data.logs.context import ContextColumns
from dprec.data.logs.store import ColumnStore, forget, stored
from dprec.errors import UserError

Split = Literal["validation", "test"]


@dataclass(frozen=True)
class EventContext:
    """What is known of each event beside its item: one number an event, whose values the columns tell."""

    columns: ContextColumns
    codes: np.ndarray  # (E,) int32


class Events:
    """What histories and a log have in common: the items of events, and their context where there is some."""

    context: EventContext | None

    @property
    def _columns(self) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def at(self, places: slice | np.ndarray) -> dict[str, np.ndarray]:
        """The items, and the context's codes, of the events at these places."""
        return {name: column[places] for name, column in self._columns.items()}

    def context_of(self, columns: Mapping[str, np.ndarray]) -> EventContext | None:
        """The context of events that were taken from these."""
        return None if self.context is None else replace(self.context, codes=columns["codes"])


@dataclass(frozen=True)
class Interactions(Events):
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
    folder: Path | None = None  # where what is as long as the log is to be written; None: it stays in memory

    @classmethod
    def of(cls, user: np.ndarray, item: np.ndarray, item_ids: list[str]) -> Interactions:
        """Events from the number of each event's user, ascending."""
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

    @property
    def _columns(self) -> dict[str, np.ndarray]:
        return {"items": self.item} | ({} if self.context is None else {"codes": self.context.codes})

    def forget(self) -> None:
        """Take what was read of mapped files out of this process's memory."""
        forget(self.offsets, *self._columns.values())

    def between(self, starts: np.ndarray, ends: np.ndarray) -> Interactions:
        """The events from `starts` to `ends` of each user alone."""
        offsets = np.concatenate([[0], np.cumsum(ends - starts)])
        store = ColumnStore(self.folder, nameless=True)
        for first, last in blocks(offsets):
            store.add(**self.at(spans(starts[first:last], ends[first:last] - starts[first:last])))
            self.forget()
        whole = store.whole()
        offsets, context = stored(offsets, self.folder), self.context_of(whole)
        return replace(self, offsets=offsets, item=whole["items"], item_users=None, ages=None, context=context)


@dataclass(frozen=True)
class Histories(Events):
    """Items of user u in time order: `items[starts[u]:ends[u]]`. Of a long log these arrays are mapped from files."""

    starts: np.ndarray  # (N,) int64, ascending
    ends: np.ndarray  # (N,) int64
    items: np.ndarray  # (E,) int32, ids 1..V, of users one after the other; others may stand between them
    folder: Path | None = None  # where what is as long as the log is to be written
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

    @property
    def _columns(self) -> dict[str, np.ndarray]:
        return {"items": self.items} | ({} if self.context is None else {"codes": self.context.codes})

    def of(self, user: int) -> np.ndarray:
        return self.items[self.starts[user] : self.ends[user]]

    def portions(self, rows: int = 2**22) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """All items (n,) and their users (n,): as many whole users at a time as fit in so many rows, at least one.

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
        """Take what was read of mapped files out of this process's memory."""
        forget(self.starts, self.ends, *self._columns.values())


class HeldOut(NamedTuple):
    """Users with held-out events, and where these are: `items[first:end]` of the histories."""

    users: np.ndarray
    first: np.ndarray
    end: np.ndarray


def spans(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers first, first + 1, ... of each span.

    >>> spans(np.array([10, 3]), np.array([2, 3]))
    array([10, 11,  3,  4,  5])
    """
    ends = np.cumsum(lengths)
    return np.repeat(first - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)


def blocks(offsets: np.ndarray, rows: int = 2**22) -> Iterator[tuple[int, int]]:
    """Users first to end, as many as fit in so many rows, but at least one."""
    first, users = 0, len(offsets) - 1
    while first < users:
        end = max(first + 1, int(np.searchsorted(offsets, offsets[first] + rows, side="right")) - 1)
        yield first, end
        first = end


def visits(events: Interactions, rows: int = 2**22) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every pair of a user and an item they saw, once, latest first: yields (n,), (n,) for a few users at a time.

    >>> events = Interactions.of(np.array([0, 0, 0, 1]), np.array([4, 2, 4, 2]), list("abcde"))
    >>> [(user.tolist(), item.tolist()) for user, item in visits(events)]
    [([0, 0, 1], [4, 2, 2])]
    """
    for first, end in blocks(events.offsets, rows):
        lengths = np.diff(events.offsets[first : end + 1])
        item = np.asarray(events.item[events.offsets[first] : events.offsets[end]])[::-1].astype(np.int64)
        user = np.repeat(np.arange(end - first)[::-1], lengths[::-1])  # descending, as the reversed events are
        _, kept = np.unique(user * len(events.item_ids) + item, return_index=True)
        kept.sort()
        kept = kept[np.argsort(user[kept], kind="stable")]
        yield first + user[kept], item[kept]
        events.forget()


class LeaveOneOut:
    """Holds out each user's last event for the test and, with `validation`, the one before it for validation.

    A user is tested only if two events remain for training; of other users all events are for training. The validation
    event comes before the test event, so it is in the history of the test, but never in training.
    """

    def __init__(self, histories: Histories, validation: bool) -> None:
        self.histories = histories
        self.validation = validation
        held = 2 if validation else 1
        self.tested = histories.lengths >= held + 2  # (N,) bool
        # (N,) where the training events stop
        self.training_ends = stored(histories.ends - held * self.tested, histories.folder)

    def training(self) -> Histories:
        """Every user's training events."""
        return replace(self.histories, ends=self.training_ends)

    def held_out(self, split: Split) -> HeldOut:
        """The tested users, with one event each."""
        if split == "validation" and not self.validation:
            raise UserError("there is no validation split: set data.validation to true")
        users = np.flatnonzero(self.tested)
        if not len(users):
            least, hint = (4, ", or 3 with data.validation false") if self.validation else (3, "")
            raise UserError(f"no user can be tested: leave-one-out needs users with at least {least} events{hint}")
        place = self.histories.ends[users] - (2 if split == "validation" else 1)
        return HeldOut(users, place, place + 1)
