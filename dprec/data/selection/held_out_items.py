"""Held-out items: no event of them is for training, so a model ranks them by what else is known of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dprec.data.logs.event_parts import GrowingEvents
from dprec.data.logs.histories import Interactions, blocks
from dprec.data.selection.held_out_events import HoldOutEvents
from dprec.data.selection.held_out_users import place_of


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
        grown = GrowingEvents(len(events), events.folder, events.context)
        before, until_test = np.empty((2, len(events.offsets) - 1), dtype=np.int64)
        for first, last in blocks(events.offsets):
            start = events.offsets[first]
            user = np.repeat(np.arange(last - first), np.diff(events.offsets[first : last + 1]))
            of = part[events.item[start : events.offsets[last]]]
            grown.add(events.at(start + np.lexsort((of, user))))
            before[first:last] = np.bincount(user[of < 1], minlength=last - first)
            until_test[first:last] = np.bincount(user[of < 2], minlength=last - first)
            events.forget()
        ordered = grown.whole()
        return replace(events, item=ordered.items, context=ordered.context, ages=None), before, until_test
