"""Every user's items in time order, in flat arrays; the filter by minimum events, and leave-one-out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import polars as pl

from dprec.data.catalogue import Catalogue
from dprec.errors import UserError

Split = Literal["validation", "test"]


@dataclass(frozen=True)
class Interactions:
    """Events of a log: grouped by user, in time order inside a user, items numbered by `item_ids`."""

    offsets: np.ndarray  # (N + 1,) int64: user u's events are offsets[u] to offsets[u + 1]
    item: np.ndarray  # (E,) int32, positions in item_ids
    item_ids: list[str]
    user_ids: pl.Series | None = None  # (N,) text
    item_users: np.ndarray | None = None  # (items,) how many users saw each item
    facts: Mapping[str, Any] = field(default_factory=dict)  # about the log, and the rows left out of it

    @classmethod
    def of(cls, user: np.ndarray, item: np.ndarray, item_ids: list[str]) -> Interactions:
        """Events from the number of each event's user, ascending."""
        return cls(np.concatenate([[0], np.cumsum(np.bincount(user))]), item, item_ids)

    def __len__(self) -> int:
        return len(self.item)

    @property
    def user(self) -> np.ndarray:  # (E,) int32, ascending
        return np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int32), np.diff(self.offsets))

    def held(self, in_memory: bool) -> Interactions:
        """These events, copied out of mapped files so that they can outlive the files."""
        return replace(self, item=np.array(self.item)) if in_memory and isinstance(self.item, np.memmap) else self


@dataclass(frozen=True)
class Histories:
    """Items of user u in time order: `items[offsets[u]:offsets[u + 1]]`."""

    offsets: np.ndarray  # (N + 1,) int64
    items: np.ndarray  # (E,) int32, ids 1..V

    @property
    def users(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:  # (N,) int64
        return np.diff(self.offsets)

    def of(self, user: int) -> np.ndarray:
        return self.items[self.offsets[user] : self.offsets[user + 1]]


def visits(events: Interactions, rows: int = 2**22) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every pair of a user and an item they saw, once, latest first: yields (n,), (n,) for a few users at a time.

    >>> events = Interactions.of(np.array([0, 0, 0, 1]), np.array([4, 2, 4, 2]), list("abcde"))
    >>> [(user.tolist(), item.tolist()) for user, item in visits(events)]
    [([0, 0, 1], [4, 2, 2])]
    """
    first, users = 0, len(events.offsets) - 1
    while first < users:
        # As many users as fit in so many rows, but at least one.
        end = max(first + 1, int(np.searchsorted(events.offsets, events.offsets[first] + rows, side="right")) - 1)
        lengths = np.diff(events.offsets[first : end + 1])
        item = np.asarray(events.item[events.offsets[first] : events.offsets[end]])[::-1].astype(np.int64)
        user = np.repeat(np.arange(end - first)[::-1], lengths[::-1])  # descending, as the reversed events are
        _, kept = np.unique(user * len(events.item_ids) + item, return_index=True)
        kept.sort()
        kept = kept[np.argsort(user[kept], kind="stable")]
        yield first + user[kept], item[kept]
        first = end


def build_histories(
    events: Interactions, min_events: int = 5, catalogue: Catalogue | None = None
) -> tuple[Histories, Catalogue]:
    """Filter events and number items 1..V.

    Without a catalogue, an event stays if its user has at least `min_events` events and its item at least as many
    users, both counted before the filter. There is one pass, as in SASRec's preprocessing, so a user may keep fewer
    events. The filter counts an item's users, not its events, so no user can keep an item in alone. With a catalogue,
    events with other items are dropped first, and then only users are filtered, each by their own events. Users with
    fewer than two events left have no transition and are dropped. `min_events` 0 or 1 switches the filter off.
    """
    if min_events < 0:
        raise UserError(f"data.min_events is {min_events}: give 0 (no filter) or a positive number")
    user, item = events.user, events.item
    if catalogue is None:
        met = np.zeros(len(events.item_ids), dtype=np.int64)
        for _, items in visits(events):
            met += np.bincount(items, minlength=len(met))
        keep = met[item] >= min_events
    else:
        number = np.array([catalogue.index(raw) or 0 for raw in events.item_ids], dtype=np.int32)
        listed = number[item] > 0
        user, item = user[listed], number[item[listed]]
        keep = np.ones(len(item), dtype=bool)
    keep &= np.bincount(user)[user] >= min_events
    user, item = user[keep], item[keep]
    lengths = np.bincount(user)
    stays = lengths >= 2
    if not stays.any():
        raise UserError(
            f"no user of {len(events)} events has {max(min_events, 2)} events whose items pass the filter: "
            "lower data.min_events or check data.catalogue"
        )
    item = item[stays[user]]
    offsets = np.concatenate([[0], np.cumsum(lengths[stays])])
    if catalogue is None:
        found = np.unique(item)
        catalogue = Catalogue([events.item_ids[position] for position in found])
        number = np.zeros(len(events.item_ids), dtype=np.int32)
        number[found] = np.arange(1, len(found) + 1)
        item = number[item]
    return Histories(offsets, item.astype(np.int32)), catalogue


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
        self.training_ends = histories.offsets[1:] - held * self.tested  # (N,) where the training events stop

    def training(self) -> Histories:
        """Every user's training events."""
        starts = self.histories.offsets[:-1]
        offsets = np.concatenate([[0], np.cumsum(self.training_ends - starts)])
        last = self.histories.offsets[1:]
        held = np.zeros(len(self.histories.items), dtype=bool)
        for back in (1, 2) if self.validation else (1,):
            held[last[self.tested] - back] = True
        return Histories(offsets, self.histories.items[~held])

    def held_out(self, split: Split) -> tuple[np.ndarray, np.ndarray]:
        """Users with a held-out event, and its position in `histories.items`."""
        if split == "validation" and not self.validation:
            raise UserError("there is no validation split: set data.validation to true")
        users = np.flatnonzero(self.tested)
        if not len(users):
            least, hint = (4, ", or 3 with data.validation false") if self.validation else (3, "")
            raise UserError(f"no user can be tested: leave-one-out needs users with at least {least} events{hint}")
        return users, self.histories.offsets[users + 1] - (2 if split == "validation" else 1)
