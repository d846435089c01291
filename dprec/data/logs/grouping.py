"""From rows in the order of a log to histories: grouped by user, in time order, with numbered users and items."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from dprec.data.logs.context import ContextColumns
from dprec.data.logs.histories import blocks
from dprec.data.logs.reader import Rows
from dprec.data.logs.store import ColumnStore, Kept, forget

_TOGETHER = 2**22  # rows that are looked at together


def grouped(rows: Rows, context: ContextColumns | None, folder: Path | None) -> Kept:
    """Users in the order of their ids, their events in time order; events at equal times keep the log's order.

    As many users are sorted at a time as have `_TOGETHER` events; with a folder the columns are written there. polars
    would sort all events at once, which takes 60 bytes an event (measured with 10 million).
    """
    found = rows.columns
    user_ids, user_place = rows.ids["user"].numbered(found["user"])
    item_ids, item_place = rows.ids["item"].numbered(found["item"])
    merged = {role: rows.ids[role].merged(place) for role, place in (("user", user_place), ("item", item_place))}
    rows.ids["user"].warn_of_alike(user_ids)
    rows.ids["item"].warn_of_alike(item_ids)
    lengths = np.zeros(len(user_ids), dtype=np.int64)
    for part in _parts(rows.kept):
        lengths += np.bincount(user_place[found["user"][part]], minlength=len(lengths))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    counts, item_users = Counter[str](), np.zeros(len(item_ids), dtype=np.int64)
    store = ColumnStore(folder)
    for chosen in _of_blocks(found["user"], user_place, offsets):
        user, item = user_place[found["user"][chosen]], item_place[found["item"][chosen]]
        time = found["time"][chosen] if rows.timed else np.zeros(len(chosen), dtype=np.int64)
        order = np.lexsort((time, user))
        user, item, time = user[order], item[order], time[order]
        columns = {"items": item}
        if rows.timed and rows.times.unit is not None:
            columns["ages"] = rows.times.ages(time)
        if context is not None:
            columns["context"] = found["codes"][chosen[order]].astype(np.int32)
        store.add(**columns)
        met = np.sort(user.astype(np.int64) * len(item_ids) + item)
        once = starts(met)
        item_users += np.bincount(met[once] % len(item_ids), minlength=len(item_ids))
        counts.update(met_again=int((~once).sum()), **_repeats(user, item, time))
        forget(*found.values())
    if rows.timed and rows.kept > len(user_ids):
        rows.times.refuse_equal(rows.path)
    tables = {
        "catalogue": pl.LazyFrame({"item_id": item_ids, "users": item_users}),
        "users": pl.LazyFrame({"user_id": user_ids}),
    }
    facts = _facts(rows, offsets, item_ids, merged, counts)
    return Kept({**store.whole(), "offsets": offsets}, tables, facts, folder=folder)


def _of_blocks(user: np.ndarray, place: np.ndarray, offsets: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of as many users at a time as have few enough rows, in the order of the log."""
    ends = [end for _, end in blocks(offsets, _TOGETHER)]
    if len(ends) == 1:
        yield np.arange(len(user))
        return
    block_of = np.searchsorted(ends, place, side="right").astype(np.uint16)
    which = np.empty(len(user), dtype=np.uint16)
    for part in _parts(len(user)):
        which[part] = block_of[user[part]]
    for block in range(len(ends)):
        yield np.flatnonzero(which == block)


def _parts(rows: int) -> list[slice]:
    return [slice(start, start + _TOGETHER) for start in range(0, rows, _TOGETHER)]


def _facts(
    rows: Rows, offsets: np.ndarray, item_ids: pl.Series, merged: dict[str, int], counts: Counter[str]
) -> dict[str, object]:
    """Facts about the log and its rows, in plain values. Private data."""
    least, median, most = np.quantile(np.diff(offsets), [0, 0.5, 1], method="lower").tolist()
    return {
        **rows.facts,
        "events": rows.kept,
        "users": len(offsets) - 1,
        "items": len(item_ids),
        "merged_user_ids": merged["user"],
        "merged_item_ids": merged["item"],
        "shortest_history": least,
        "median_history": median,
        "longest_history": most,
        "items_met_again": counts["met_again"],
        "events_at_the_time_of_another": counts["equal_times"],
        "duplicate_events": counts["duplicates"],
        "time_from": rows.time_from,
        "times": rows.span,
    }


def _repeats(user: np.ndarray, item: np.ndarray, time: np.ndarray) -> dict[str, int]:
    """How many of ordered events are at the time of the user's event before, and how many are equal to another one."""
    same = ~starts(user, time)
    equal_times, moment = int(same.sum()), np.cumsum(~same)
    same[:-1] |= same[1:]  # and the one before
    moment, twin = moment[same], item[same]
    order = np.lexsort((twin, moment))
    return {"equal_times": equal_times, "duplicates": int((~starts(moment[order], twin[order])).sum())}


def starts(*ascending: np.ndarray) -> np.ndarray:
    """Where a row differs from the one before it; true for the first."""
    new = np.ones(len(ascending[0]), dtype=bool)
    if len(new):
        new[1:] = np.any([column[1:] != column[:-1] for column in ascending], axis=0)
    return new
