"""From the events of a log to the histories that a run uses: which users and items stay, and what was dropped."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dprec.data.logs.histories import Histories, Interactions, blocks, visits
from dprec.data.selection.catalogue import Catalogue
from dprec.errors import UserError


class Filtered(NamedTuple):
    histories: Histories
    catalogue: Catalogue
    dropped: dict[str, int]  # what each filter left out, counted without noise: private data
    users: np.ndarray  # (N,) which users of the log stay
    number: np.ndarray  # (items of the log,) the number of each in the catalogue, 0 for those that are not in it


def build_histories(events: Interactions, min_events: int = 5, catalogue: Catalogue | None = None) -> Filtered:
    """Filter events and number items 1..V.

    Without a catalogue, an event stays if its user has at least `min_events` events and its item at least as many
    users, both counted before the filter. There is one pass, as in SASRec's preprocessing, so a user may keep fewer
    events. The filter counts an item's users, not its events, so no user can keep an item in alone. With a catalogue,
    events with other items are dropped first, and then only users are filtered, each by their own events. Users with
    fewer than two events left have no transition and are dropped. `min_events` 0 or 1 switches the filter off.

    Reads some users at a time: of a long log, only the items that stay are in memory.
    """
    if min_events < 0:
        raise UserError(f"data.min_events is {min_events}: give 0 (no filter) or a positive number")
    passes = _passes(events, min_events) if catalogue is None else _listed(events, catalogue)
    chosen = np.empty(len(events), dtype=np.int32)  # pages that nothing is written to take no memory
    lengths, who, end = [], [], 0
    there = np.zeros(len(passes), dtype=bool)  # items of the events that stay
    other_items = few_events = no_transition = 0
    for first, last in blocks(events.offsets):
        start = events.offsets[first]
        item = np.asarray(events.item[start : events.offsets[last]])
        ends = events.offsets[first : last + 1] - start
        kept = passes[item]
        left = np.diff(np.concatenate([[0], np.cumsum(kept)])[ends])  # events of each user
        enough = (np.diff(ends) if catalogue is None else left) >= min_events
        stays = enough & (left >= 2)
        there_now = item[kept & np.repeat(stays, np.diff(ends))]
        chosen[end : end + len(there_now)] = there_now
        there[there_now] = True
        lengths.append(left[stays])
        who.append(first + np.flatnonzero(stays))
        end += len(there_now)
        other_items += len(item) - int(left.sum())
        few_events += int((~enough & (np.diff(ends) > 0)).sum())
        no_transition += int((enough & ~stays & (np.diff(ends) > 0)).sum())
    if not end:
        raise UserError(
            f"no user of {len(events)} events has {max(min_events, 2)} events whose items pass the filter: "
            "lower data.min_events or check data.catalogue"
        )
    dropped = {
        "items_left_out": int((~passes).sum()),
        "events_with_items_left_out": other_items,
        "users_with_few_events": few_events,
        "users_without_transition": no_transition,
        "events_of_users_left_out": len(events) - other_items - end,
        "items_of_users_left_out": int((passes & ~there).sum()) if catalogue is None else 0,
    }
    if catalogue is None:
        number = np.zeros(len(passes), dtype=np.int32)
        number[there] = np.arange(1, int(there.sum()) + 1)
        catalogue = Catalogue([events.item_ids[place] for place in np.flatnonzero(there)])
    else:
        number = np.array([catalogue.index(raw) or 0 for raw in events.item_ids], dtype=np.int32)
    for start in range(0, end, 2**22):
        part = chosen[start : min(end, start + 2**22)]
        part[:] = number[part]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return Filtered(Histories(offsets, chosen[:end]), catalogue, dropped, np.concatenate(who), number)


def _passes(events: Interactions, least: int) -> np.ndarray:
    """Items that enough users saw."""
    met = events.item_users
    if met is None:
        met = np.zeros(len(events.item_ids), dtype=np.int64)
        for _, items in visits(events):
            met += np.bincount(items, minlength=len(met))
    passes: np.ndarray = met >= max(1, least)
    return passes


def _listed(events: Interactions, catalogue: Catalogue) -> np.ndarray:
    return np.array([catalogue.index(raw) is not None for raw in events.item_ids], dtype=bool)
