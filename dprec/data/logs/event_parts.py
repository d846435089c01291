"""Some events of a log: their items, and what is known of each beside its item; and how parts become a whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dprec.data.arrays.mapped import Growing
from dprec.data.logs.context import ContextColumns


@dataclass(frozen=True)
class EventContext:
    """What is known of each event beside its item: one number an event, whose values the columns tell."""

    columns: ContextColumns
    codes: np.ndarray  # (E,) int32


@dataclass(frozen=True)
class Events:
    """The items of some events (E,), and their context where the log has some."""

    items: np.ndarray
    context: EventContext | None

    @classmethod
    def room(cls, events: int, like: EventContext | None) -> Events:
        """Room for so many, with context if `like` is some."""
        context = None if like is None else replace(like, codes=np.empty(events, dtype=np.int32))
        return cls(np.empty(events, dtype=np.int32), context)

    def at(self, places: slice | np.ndarray) -> Events:
        """Those at these places."""
        context = None if self.context is None else replace(self.context, codes=self.context.codes[places])
        return Events(self.items[places], context)

    def put(self, places: np.ndarray, others: Events) -> None:
        """Write others over those at these places."""
        self.items[places] = others.items
        if self.context is not None and others.context is not None:
            self.context.codes[places] = others.context.codes


class GrowingEvents:
    """Events that arrive one part after the other, at most `most` of them (`Growing`).

    `like` says whether they have context: it is that of the events which they are taken from.
    """

    def __init__(self, most: int, folder: Path | None, like: EventContext | None) -> None:
        self._items = Growing(np.dtype(np.int32), most, folder)
        self._codes = None if like is None else Growing(np.dtype(np.int32), most, folder)
        self._like = like

    def add(self, part: Events) -> None:
        self._items.add(part.items)
        if self._codes is not None and part.context is not None:
            self._codes.add(part.context.codes)

    def whole(self) -> Events:
        """All of them; nothing can be added after that."""
        if self._codes is None or self._like is None:
            return Events(self._items.whole(), None)
        return Events(self._items.whole(), replace(self._like, codes=self._codes.whole()))
