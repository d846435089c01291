"""Held-out items: no event of them is for training, so a model ranks them by what else is known of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dprec.data.logs.event_parts import GrowingEvents
from dprec.data.logs.histories import Interactions, blocks
from dprec.data.selection.held_out_events import Cut, HoldOutEvents
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

    def cut(self, events: Interactions) -> Cut:
        part = self._part(events)
        grown = GrowingEvents(len(events), events.folder, events.context)
        for first, last in blocks(events.offsets):
            start = events.offsets[first]
            user = np.repeat(np.arange(first, last), np.diff(events.offsets[first : last + 1]))
            order = start + np.lexsort((part[events.item[start : events.offsets[last]]], user))
            grown.add(events.at(order))
            events.forget()
        ordered = grown.whole()
        return super().cut(replace(events, item=ordered.items, context=ordered.context, ages=None))

    def ends(self, events: Interactions) -> tuple[np.ndarray, np.ndarray]:
        part = self._part(events)
        counts = np.empty((2, len(events.offsets) - 1), dtype=np.int64)
        for first, last in blocks(events.offsets):
            start = events.offsets[first]
            of = part[events.item[start : events.offsets[last]]]
            for least, count in enumerate(counts, start=1):
                earlier = np.concatenate([[0], np.cumsum(of < least)])
                count[first:last] = np.diff(earlier[events.offsets[first : last + 1] - start])
            events.forget()
        return counts[0], counts[1]

    def _part(self, events: Interactions) -> np.ndarray:
        """Of each item (items,): 0 for training, 1 for validation, 2 for the test."""
        place = place_of(events.item_ids)
        held = 2 * self.amount if self.validation else self.amount
        return np.where(place < self.amount, 2, np.where(place < held, 1, 0))
