"""What is held out of the data: last items, whole users, last days, last shares or new items; and the rest of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dprec.data.logs.histories import Histories, Interactions
from dprec.data.logs.parts import Source
from dprec.data.selection.catalogue import Catalogue, build_histories
from dprec.data.selection.held_out import (
    HoldOutEvents,
    LastDays,
    LastShare,
    NewItems,
    SplitHistories,
    hold_out_users,
    leave_one_out,
    place_of,
)
from dprec.errors import UserError


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
    """What is held out for the test; with `validation`, as much again for validation."""

    validation: bool
    test_users: float | None = None
    test_days: float | None = None
    test_events: float | None = None
    test_items: float | None = None

    def __post_init__(self) -> None:
        ways = ("test_users", "test_days", "test_events", "test_items")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) > 1:
            raise UserError(f"data.{given[0]} and data.{given[1]} are two ways to hold out: give one")
        for name in ("test_users", "test_events", "test_items"):
            share = getattr(self, name)
            if share is not None and not 0 < share < (0.5 if self.validation else 1):
                most = "0.5, since as many are held out for validation" if self.validation else "1"
                raise UserError(f"data.{name} is {share}: give a share above 0 and below {most}")
        if self.test_days is not None and not 0 < self.test_days <= 20_000:
            raise UserError(f"data.test_days is {self.test_days}: give a number of days above 0, at most 20,000")

    @property
    def events(self) -> HoldOutEvents | None:
        """The rule, where several events of a user are held out."""
        if self.test_days is not None:
            return LastDays(self.test_days, self.validation)
        if self.test_items is not None:
            return NewItems(self.test_items, self.validation)
        return None if self.test_events is None else LastShare(self.test_events, self.validation)

    @property
    def leave_one_out(self) -> bool:
        return self.events is None and self.test_users is None

    @property
    def said_of_validation(self) -> str:
        """What is held out beside the test, with its verb."""
        if self.test_days is not None:
            return f"those of the {self.test_days:g} days before are"
        if self.test_events is not None:
            return "as many items before them are"
        if self.test_items is not None:
            return "the events of as many other items are"
        return "the item before the last is" if self.test_users is None else "as many other users are"

    @property
    def said(self) -> str:
        """What is to be predicted, in words."""
        if self.events is not None:
            return self.events.said
        if self.test_users is not None:
            return f"the last item of {self.test_users:g} of the users, who take no part in training"
        return "each user's last item"

    def load(self, source: Source[Interactions], least: int, given: Catalogue | None) -> SplitLog:
        """Filter, number and hold out; `least` is data.min_events, `given` a catalogue from elsewhere."""
        found, rule = source.found, self.events
        if rule is not None:
            rule.refuse_all_or_nothing(found)
        kept = build_histories(found, least, given)
        if len(kept.catalogue) < 2:
            raise UserError(
                f"the catalogue has {len(kept.catalogue)} item, so there is nothing to rank: "
                "check data.item_column and data.catalogue, or lower data.min_events"
            )
        if rule is not None:
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
            "users_tested": split.tested,
        }
        filtered = given is None and least > 1
        return SplitLog(
            kept.histories, kept.catalogue, split, split.training, filtered, source.name, source.notice, summary
        )
