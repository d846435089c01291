"""Held-out events, several of a user: of the last days, the last share of each user's, or of new items; and users.

Held-out events are cut off before anything else is done, so nothing that training counts, or takes as its items,
depends on them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dprec.data.logs.histories import HeldOut, Histories, Interactions, Split, blocks, spans
from dprec.data.logs.store import ColumnStore, forget, stored
from dprec.data.selection.catalogue import Filtered
from dprec.errors import UserError

DAY = 86_400


def place_of(ids: Iterable[str]) -> np.ndarray:
    """A number from 0 to 1 for each user, which follows from that user's id alone.

    So whether somebody is in the data decides nothing about who else is held out. A place in a list of users would.

    >>> place_of(["ann", "bob"]).round(3).tolist() == place_of(["zoe", "ann", "bob"])[1:].round(3).tolist()
    True
    """
    digests = b"".join(blake2b(raw.encode(), digest_size=8).digest() for raw in ids)
    return np.frombuffer(digests, dtype="<u8") / 2**64


class HeldOutUsers:
    """Strong generalisation, as Mult-VAE and DPALS are measured: all events of a user are for training, or none.

    With `validation` as many users again are held out for it. Held-out histories have at least two events, so each
    has something before its target.
    """

    def __init__(self, histories: Histories, places: np.ndarray, share: float, validation: bool) -> None:
        self.histories = histories
        self.validation = validation
        self._of_test = places < share
        self._of_validation = (places >= share) & (places < 2 * share) if validation else np.zeros_like(self._of_test)
        self.tested = self._of_test  # (N,) bool

    def training(self) -> Histories:
        """All events of the users who are not held out."""
        stays = ~(self._of_test | self._of_validation)
        if not stays.any() or not self._of_test.any():
            raise UserError(
                f"data.test_users holds out {int(self._of_test.sum())} of {len(stays)} users for the test and leaves "
                f"{int(stays.sum())} for training: give another share"
            )
        starts, ends, folder = self.histories.starts[stays], self.histories.ends[stays], self.histories.folder
        return replace(self.histories, starts=stored(starts, folder), ends=stored(ends, folder))

    def held_out(self, split: Split) -> HeldOut:
        """The users of a split, with the last event of each."""
        if split == "validation" and not self.validation:
            raise UserError("there is no validation split: set data.validation to true")
        users = np.flatnonzero(self._of_test if split == "test" else self._of_validation)
        if not len(users):
            raise UserError(f"data.test_users holds nobody out for the {split}: give a larger share")
        ends = self.histories.ends[users]
        return HeldOut(users, ends - 1, ends)


@dataclass(frozen=True)
class HoldOutEvents(ABC):
    """A rule that cuts each user's events in two or three: for training, perhaps for validation, for the test."""

    amount: float
    validation: bool
    setting = ""

    @property
    @abstractmethod
    def said(self) -> str:
        """What is held out for the test, in words."""

    @abstractmethod
    def parted(self, events: Interactions) -> tuple[Interactions, np.ndarray, np.ndarray]:
        """The events, each user's in the order of the parts, and how many (N,) come before validation, and the test."""

    def cut(self, events: Interactions) -> Cut:
        events, before, until_test = self.parted(events)
        if before.sum() == len(events) or not before.any():
            raise UserError(
                f"data.{self.setting} {self.amount:g} leaves {before.sum():,} of {len(events):,} events for training "
                f"and {int((np.diff(events.offsets) - until_test).sum()):,} for the test: give another number"
            )
        starts = events.offsets[:-1]
        return Cut(self, events, events.between(starts, starts + before), starts + before, starts + until_test)


class LastDays(HoldOutEvents):
    """The events less than so many days before the last event of the log; validation has as many days before these."""

    setting = "test_days"

    @property
    def said(self) -> str:
        return f"the items of the last {self.amount:g} day{'' if self.amount == 1 else 's'} of the log"

    def parted(self, events: Interactions) -> tuple[Interactions, np.ndarray, np.ndarray]:
        if events.ages is None:
            known = events.facts.get("times")
            why = "has no times" if known in (None, "none") else f"has times of an unknown unit ({known})"
            raise UserError(f"data.test_days needs times that are dates or counts since 1970, and the log {why}")
        until_test = _older(events, self.amount * DAY)
        return events, (_older(events, 2 * self.amount * DAY) if self.validation else until_test), until_test


class LastShare(HoldOutEvents):
    """The last events of each user, a share of them, rounded down; validation has as many before these.

    Two events of each user remain for training, whatever the share.
    """

    setting = "test_events"

    @property
    def said(self) -> str:
        return f"the last {self.amount:g} of each user's items"

    def parted(self, events: Interactions) -> tuple[Interactions, np.ndarray, np.ndarray]:
        lengths = np.diff(events.offsets)
        held = np.floor(lengths * self.amount + 1e-9).astype(np.int64)  # 0.29 of 100 is 29
        parts = 2 if self.validation else 1
        held = np.minimum(held, np.maximum(lengths - 2, 0) // parts)
        return events, lengths - parts * held, lengths - held


class NewItems(HoldOutEvents):
    """A share of the items; with `validation` as many others. Which they are follows from each item's id alone.

    A user's events of other items come first, those of validation next, those of the test last, each in time order.
    So a history may hold events that came after the held-out one.
    """

    setting = "test_items"

    @property
    def said(self) -> str:
        return f"the events of {self.amount:g} of the items, which training never met"

    def parted(self, events: Interactions) -> tuple[Interactions, np.ndarray, np.ndarray]:
        place = place_of(events.item_ids)
        held = 2 * self.amount if self.validation else self.amount
        part = np.where(place < self.amount, 2, np.where(place < held, 1, 0))  # (items,), 0 for training
        store = ColumnStore(events.folder, nameless=True)
        before, until_test = np.empty((2, len(events.offsets) - 1), dtype=np.int64)
        for first, last in blocks(events.offsets):
            start = events.offsets[first]
            user = np.repeat(np.arange(last - first), np.diff(events.offsets[first : last + 1]))
            of = part[events.item[start : events.offsets[last]]]
            store.add(**events.at(start + np.lexsort((of, user))))
            before[first:last] = np.bincount(user[of < 1], minlength=last - first)
            until_test[first:last] = np.bincount(user[of < 2], minlength=last - first)
            events.forget()
        ordered = store.whole()
        moved = replace(events, item=ordered["items"], context=events.context_of(ordered), ages=None)
        return moved, before, until_test


class Cut(NamedTuple):
    """A log in two: what training may know, and the rest."""

    rule: HoldOutEvents
    events: Interactions
    training: Interactions
    validation: np.ndarray  # (N,) where each user's events for validation begin
    test: np.ndarray  # (N,) and those of the test

    def join(self, kept: Filtered) -> tuple[HeldOutEvents, dict[str, int]]:
        """Add the held-out events to the histories that stay, and count those that cannot be tested.

        Only users and items that training knows are tested.
        """
        ends = self.events.offsets[1:][kept.users]
        places = [self.validation[kept.users], self.test[kept.users], ends]
        later = [_known(self.events, *pair, kept.number) for pair in pairwise(places)]
        whole = _side_by_side([kept.histories, *later])
        test = whole.ends - later[1].lengths
        counts = {
            "events_held_out": len(self.events) - len(self.training),
            "events_of_validation": len(later[0].items),
            "events_tested": len(later[1].items),
            "held_out_of_other_users": len(self.events) - len(self.training) - int((ends - places[0]).sum()),
            "held_out_of_other_items": int((ends - places[0]).sum()) - sum(len(part.items) for part in later),
        }
        starts = (stored(part, whole.folder) for part in (test - later[0].lengths, test))
        return HeldOutEvents(self.rule, whole, *starts), counts


@dataclass(frozen=True)
class HeldOutEvents:
    """Histories whose last events are held out: `validation` and `test` say where each user's begin in them."""

    rule: HoldOutEvents
    histories: Histories
    validation: np.ndarray  # (N,)
    test: np.ndarray  # (N,)

    @property
    def tested(self) -> np.ndarray:  # (N,) bool
        return np.asarray(self.test < self.histories.ends)

    def training(self) -> Histories:
        return replace(self.histories, ends=self.validation)

    def held_out(self, split: Split) -> HeldOut:
        """The users with held-out events of a split, with all of these."""
        if split == "validation" and not self.rule.validation:
            raise UserError("there is no validation split: set data.validation to true")
        first, end = (self.test, self.histories.ends) if split == "test" else (self.validation, self.test)
        users = np.flatnonzero(first < end)
        if not len(users):
            raise UserError(
                f"data.{self.rule.setting} {self.rule.amount:g} holds out no event for the {split} of a user and an "
                "item that training knows: give a larger number"
            )
        return HeldOut(users, first[users], end[users])


def _older(events: Interactions, seconds: float) -> np.ndarray:
    """How many of each user's events are at least so much older than the last of the log."""
    assert events.ages is not None
    counts = np.empty(len(events.offsets) - 1, dtype=np.int64)
    for first, last in blocks(events.offsets):
        start = events.offsets[first]
        older = np.concatenate([[0], np.cumsum(events.ages[start : events.offsets[last]] >= seconds)])
        counts[first:last] = np.diff(older[events.offsets[first : last + 1] - start])
        forget(events.ages)
    return counts


def _known(events: Interactions, starts: np.ndarray, ends: np.ndarray, number: np.ndarray) -> Histories:
    """The events from `starts` to `ends` in numbers of the catalogue, without the items that it lacks."""
    part = events.between(starts, ends)
    store = ColumnStore(events.folder, nameless=True)
    lengths = np.empty(len(starts), dtype=np.int64)
    for first, last in blocks(part.offsets):
        read = part.at(slice(part.offsets[first], part.offsets[last]))
        read["items"] = number[read["items"]]
        known = read["items"] > 0
        kept = np.concatenate([[0], np.cumsum(known)])
        lengths[first:last] = np.diff(kept[part.offsets[first : last + 1] - part.offsets[first]])
        store.add(**{name: column[known] for name, column in read.items()})
    whole, offsets = store.whole(), np.concatenate([[0], np.cumsum(lengths)])
    return Histories.joined(offsets, whole["items"], events.folder, events.context_of(whole))


def _side_by_side(parts: list[Histories]) -> Histories:
    """Each user's events of the first part, then of the second, and so on."""
    offsets = np.concatenate([[0], np.cumsum(sum(part.lengths for part in parts))])
    store = ColumnStore(parts[0].folder, nameless=True)
    for first, last in blocks(offsets):
        joined: dict[str, np.ndarray] = {}
        place = offsets[first:last] - offsets[first]
        for part in parts:
            starts, lengths = part.starts[first:last], part.ends[first:last] - part.starts[first:last]
            for name, column in part.at(spans(starts, lengths)).items():
                room = joined.setdefault(name, np.empty(int(offsets[last] - offsets[first]), dtype=np.int32))
                room[spans(place, lengths)] = column
            place += lengths
            part.forget()
        store.add(**joined)
    whole = store.whole()
    return Histories.joined(offsets, whole["items"], parts[0].folder, parts[0].context_of(whole))
