"""Holds out parts of histories: last events, users, or the events that a rule chooses.

Rules hold out several events of a user: those of the last days, the last share of each user's, or those of new items.
They apply first, so that neither training's counts nor its items depend on held-out events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dprec.data.logs.histories import Histories, Interactions, Split
from dprec.data.logs.parts import Source
from dprec.data.logs.store import forget, stored
from dprec.data.selection.catalogue import Catalogue, build_histories
from dprec.data.selection.strong import SHARE, divide, place_of, to_find
from dprec.errors import UserError

DAY = 86_400


class HeldOut(NamedTuple):
    """Users with held-out events, and the places of these: `items[first:end]` of the histories."""

    users: np.ndarray
    first: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class SplitHistories:
    """Histories whose last events are held out.

    Args:
        histories: all events of all users, or of the users who are held out entirely.
        training: the training events of the users who take part in training.
        validation: (N,) where each user's validation events begin; they end where those of the test begin.
        test: (N,) where each user's test events begin, up to the end of the history.
        validated: whether events are held out for validation.
        nobody: the message if no user has a held-out event; `{}` stands for the split.
    """

    histories: Histories
    training: Histories
    validation: np.ndarray
    test: np.ndarray
    validated: bool
    nobody: str

    @classmethod
    def of(
        cls, histories: Histories, validation: np.ndarray, test: np.ndarray, validated: bool, nobody: str
    ) -> SplitHistories:
        """Make a split in which all users take part in training, with the events before their held-out ones."""
        validation, test = (stored(begin, histories.folder) for begin in (validation, test))
        return cls(histories, replace(histories, ends=validation), validation, test, validated, nobody)

    @property
    def tested(self) -> int:
        """How many users have test events."""
        return int((self.test < self.histories.ends).sum())

    def held_out(self, split: Split) -> HeldOut:
        """The users with held-out events of a split, and these events' places."""
        if split == "validation" and not self.validated:
            raise UserError("there is no validation split: set data.validation to true")
        first, end = (self.test, self.histories.ends) if split == "test" else (self.validation, self.test)
        users = np.flatnonzero(first < end)
        if not len(users):
            raise UserError(self.nobody.format(split))
        return HeldOut(users, first[users], end[users])


def leave_one_out(histories: Histories, validation: bool) -> SplitHistories:
    """Hold out each user's last event for the test and, with `validation`, the one before it for validation.

    A user is tested only if two events remain for training; all events of other users are for training. The validation
    event comes before the test event, so it is in the test's history, but never in training.
    """
    held = 2 if validation else 1
    tested = histories.lengths >= held + 2
    least, hint = (4, ", or 3 with data.validation false") if validation else (3, "")
    nobody = f"no user can be tested: leave-one-out needs users with at least {least} events{hint}"
    ends = histories.ends
    return SplitHistories.of(histories, ends - held * tested, ends - tested, validation, nobody)


def hold_out_users(histories: Histories, places: np.ndarray, share: float, validation: bool) -> SplitHistories:
    """Hold out users entirely; the last event of a held-out user is to be predicted.

    With `validation`, as many other users are held out for it. Held-out histories have at least two events, so each
    has an event before its target, which is the last one.
    """
    of_test = places < share
    away = places < 2 * share if validation else of_test
    stays = ~away
    if not stays.any() or not of_test.any():
        raise UserError(
            f"data.test_users holds out {int(of_test.sum())} of {len(stays)} users for the test and leaves "
            f"{int(stays.sum())} for training: give another share"
        )
    starts, ends = (stored(all_of[stays], histories.folder) for all_of in (histories.starts, histories.ends))
    training = replace(histories, starts=starts, ends=ends)
    nobody = "data.test_users holds out no user for the {}: give a larger share"
    return SplitHistories(histories, training, histories.ends - away, histories.ends - of_test, validation, nobody)


def hold_out_strong(away: Interactions, training: Histories, catalogue: Catalogue, least: int) -> SplitHistories:
    """Hold out items of the users `away`, for the test or for validation; items that training lacks are left out."""
    kept = build_histories(away, least, catalogue)
    users = away.ids_of(kept.users)
    histories, given = to_find(kept.histories, users, catalogue.ids)
    validation = histories.starts + given
    test = np.where(place_of(users) < SHARE, validation, histories.ends)
    nobody = "data.protocol strong holds out no user with 5 items for the {}: give a log of more users"
    return SplitHistories(histories, training, validation, test, True, nobody)


@dataclass(frozen=True)
class HoldOutEvents(ABC):
    """A rule that divides each user's events into training, optionally validation, and test."""

    amount: float
    validation: bool
    setting = ""
    reorders = False  # whether a held-out event may come before one for training

    @property
    @abstractmethod
    def said(self) -> str:
        """What is held out for the test, in words."""

    @abstractmethod
    def part(self, events: Interactions, place: slice, user: np.ndarray) -> np.ndarray:
        """Return the part (n,) uint8 of consecutive events, all of some users, whose numbers `user` are from 0."""

    def refuse_all_or_nothing(self, events: Interactions) -> None:
        """Refuse a rule that leaves nothing for training, or nothing to test."""
        training = int(events.lengths.sum())
        if not training or training == len(events):
            test = sum(int((portion.part == 2).sum()) for portion in events.portions())
            raise UserError(
                f"data.{self.setting} {self.amount:g} leaves {training:,} of {len(events):,} events for training "
                f"and {test:,} for the test: give another number"
            )

    def split(self, histories: Histories, parts: np.ndarray) -> SplitHistories:
        """Hold out the last events of each user; `parts` (N, 3) are the lengths of each user's three parts."""
        nobody = (
            f"data.{self.setting} {self.amount:g} holds out no event for the {{}} of a user and an item that training "
            "knows: give a larger number"
        )
        validation = histories.starts + parts[:, 0]
        return SplitHistories.of(histories, validation, validation + parts[:, 1], self.validation, nobody)

    def _parts(self, far: np.ndarray, near: np.ndarray) -> np.ndarray:
        """Number the parts of events in the test (`near`), and in validation or test (`far`)."""
        return near.astype(np.uint8) + (far if self.validation else near)


class LastDays(HoldOutEvents):
    """Holds out events less than so many days before the log's last event; validation has as many days before."""

    setting = "test_days"

    @property
    def said(self) -> str:
        return f"the items of the last {self.amount:g} day{'' if self.amount == 1 else 's'} of the log"

    def part(self, events: Interactions, place: slice, user: np.ndarray) -> np.ndarray:
        if events.ages is None:
            known = events.facts.get("times")
            why = "has no times" if known in (None, "none") else f"has times of an unknown unit ({known})"
            raise UserError(f"data.test_days needs times that are dates or counts since 1970, and the log {why}")
        ages = events.ages[place]
        parts = self._parts(ages < 2 * self.amount * DAY, ages < self.amount * DAY)
        forget(events.ages)
        return parts


class LastShare(HoldOutEvents):
    """Holds out the last share of each user's events, rounded down; validation has as many before these.

    At least two events of each user remain for training.
    """

    setting = "test_events"

    @property
    def said(self) -> str:
        return f"the last {self.amount:g} of each user's items"

    def part(self, events: Interactions, place: slice, user: np.ndarray) -> np.ndarray:
        lengths = np.bincount(user)
        held = np.floor(lengths * self.amount + 1e-9).astype(np.int64)  # 0.29 of 100 is 29
        held = np.minimum(held, np.maximum(lengths - 2, 0) // (2 if self.validation else 1))
        left = np.cumsum(lengths)[user] - np.arange(len(user))  # events of the user from here on
        return self._parts(left <= 2 * held[user], left <= held[user])


class NewItems(HoldOutEvents):
    """Holds out a share of the items; with `validation`, as many others. Each item's id alone decides.

    A user's events of other items come first, then those of validation, then those of the test, each in time order.
    So a history may contain events that happened after the held-out one.
    """

    setting = "test_items"
    reorders = True

    @property
    def said(self) -> str:
        return f"the events of {self.amount:g} of the items, which are not in training"

    def part(self, events: Interactions, place: slice, user: np.ndarray) -> np.ndarray:
        where = place_of(events.item_ids)
        return self._parts(where < 2 * self.amount, where < self.amount)[events.item[place]]


@dataclass(frozen=True)
class SplitLog:
    """The data after reading, filtering and splitting."""

    histories: Histories
    catalogue: Catalogue
    split: SplitHistories
    training: Histories
    items_filtered: bool  # by the number of users with them
    name: str
    notice: str | None
    summary: dict[str, Any]


@dataclass(frozen=True)
class Protocol:
    """The settings of what is held out for the test; with `validation`, as much again for validation."""

    validation: bool
    test_users: float | None = None
    test_days: float | None = None
    test_events: float | None = None
    test_items: float | None = None
    strong: bool = False  # as Mult-VAE and DPALS are measured

    def __post_init__(self) -> None:
        ways = ("test_users", "test_days", "test_events", "test_items")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) > 1:
            raise UserError(f"data.{given[0]} and data.{given[1]} are two ways to hold out: give one")
        if self.strong and given:
            raise UserError(f"data.protocol strong and data.{given[0]} are two ways to hold out: give one")
        if self.strong and not self.validation:
            raise UserError("data.protocol strong holds out users for validation, too: set data.validation to true")
        for name in ("test_users", "test_events", "test_items"):
            share = getattr(self, name)
            if share is not None and not 0 < share < (0.5 if self.validation else 1):
                most = "0.5, since as many are held out for validation" if self.validation else "1"
                raise UserError(f"data.{name} is {share}: give a share above 0 and below {most}")
        if self.test_days is not None and not 0 < self.test_days <= 20_000:
            raise UserError(f"data.test_days is {self.test_days}: give a number of days above 0, at most 20,000")

    @property
    def events(self) -> HoldOutEvents | None:
        """The rule, if several events of a user may be held out."""
        if self.test_days is not None:
            return LastDays(self.test_days, self.validation)
        if self.test_items is not None:
            return NewItems(self.test_items, self.validation)
        return None if self.test_events is None else LastShare(self.test_events, self.validation)

    @property
    def leave_one_out(self) -> bool:
        return self.events is None and self.test_users is None and not self.strong

    @property
    def several(self) -> bool:
        """Whether a user may have several held-out items."""
        return self.events is not None or self.strong

    def applied_to(self, found: Interactions) -> Interactions:
        """Return the events after the steps that must come first: a rule, or users held out entirely."""
        return divide(found) if self.strong else replace(found, rule=self.events)

    @property
    def said_of_validation(self) -> str:
        """What is held out beside the test, with its verb."""
        if self.test_days is not None:
            return f"those of the {self.test_days:g} days before are"
        if self.test_events is not None:
            return "as many items before them are"
        if self.test_items is not None:
            return "the events of as many other items are"
        return "the item before the last is" if self.leave_one_out else "as many other users are"

    @property
    def said(self) -> str:
        """What is to be predicted, in words."""
        if self.events is not None:
            return self.events.said
        if self.test_users is not None:
            return f"the last item of {self.test_users:g} of the users, who take no part in training"
        if self.strong:
            return (
                f"a random fifth of the items of {SHARE:.3g} of the users, from their other items; these users take "
                "no part in training"
            )
        return "each user's last item"

    def load(
        self, source: Source[Interactions], least: int, given: Catalogue | None, first: Sequence[str] = ()
    ) -> SplitLog:
        """Filter, number and hold out; `least` is data.min_events, `given` a catalogue from elsewhere.

        Without one, items `first` are numbered first.
        """
        found, rule = source.found, self.events
        if rule is not None:
            rule.refuse_all_or_nothing(found)
        kept = build_histories(found, least, given, first)
        if len(kept.catalogue) < 2:
            raise UserError(
                f"the catalogue has {len(kept.catalogue)} item, so there is nothing to rank: "
                "check data.item_column and data.catalogue, or lower data.min_events"
            )
        if found.away is not None:
            split = hold_out_strong(found.away, kept.histories, kept.catalogue, least)
        elif rule is not None:
            split = rule.split(kept.histories, kept.parts)
        elif self.test_users is not None:
            places = place_of(found.ids_of(kept.users))
            split = hold_out_users(kept.histories, places, self.test_users, self.validation)
        else:
            split = leave_one_out(kept.histories, self.validation)
        summary = {
            **found.facts,
            **kept.facts,
            "users_kept": kept.histories.users,
            "items_kept": len(kept.catalogue),
            "events_kept": len(kept.histories.items),
            "held_out": self.said,
            "users_held_out": None if found.away is None else split.histories.users,
            "users_tested": split.tested,
        }
        filtered = given is None and least > 1
        return SplitLog(
            kept.histories, kept.catalogue, split, split.training, filtered, source.name, source.notice, summary
        )
