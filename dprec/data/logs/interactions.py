"""Reads the events of a log from a path or a data frame: grouped by user, each user's in time order.

A log of 256 MB and more is read once, into a folder beside it, and mapped into memory from then on:

    items.int32        the item of every event, as its place in the catalogue: user after user, each in time order
    context.int32      every event's context; missing if data.context names no columns
    ages.uint32        seconds from each event to the last of the log; missing if times have no unit
    offsets.int64      user u's events are offsets[u] to offsets[u + 1]
    catalogue.parquet  item_id and users (how many saw it), in the items' order
    users.parquet      user_id, in the users' order
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dprec.data.formats import AUTO, FORMATS
from dprec.data.formats.columnar import FRAME, Frame
from dprec.data.formats.format import unpacked_name
from dprec.data.formats.wanted import Wanted
from dprec.data.logs.context import ContextColumns
from dprec.data.logs.histories import EventContext, Interactions, blocks
from dprec.data.logs.parts import holds_parts, local, parts_of
from dprec.data.logs.reader import LogReader, Rows, by_name
from dprec.data.logs.store import META, ColumnStore, Kept, forget, kept_if_large, kept_or_read
from dprec.errors import UserError

FORMAT = 3  # of a prepared folder: raise it when the content of the files changes


@dataclass(frozen=True)
class HowToRead:
    """The roles of a log's columns, and which rows to use."""

    format: str = AUTO
    user_column: str | None = None
    item_column: str | None = None
    time_column: str | None = None
    where: str | None = None
    context: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.context is not None:  # normalised, since the name of a prepared folder depends on it
            object.__setattr__(self, "context", ContextColumns.of(self.context).plain)

    def read(self, path: Path, folder: Path | None = None, frame: Frame | None = None) -> Interactions:
        """Read the events of a log or a data frame; with a folder, columns are written there."""
        return _events_of(self.columns(path, folder, frame), self.context)

    def columns(self, path: Path, folder: Path | None = None, frame: Frame | None = None) -> Kept:
        """Read the same as columns and tables of text."""
        context = None if self.context is None else ContextColumns.of(self.context)
        roles = {"user": self.user_column, "item": self.item_column, "time": self.time_column}
        wanted = Wanted({**roles, **({} if context is None else context.roles)}, self.where)
        reader = LogReader(path, wanted, partial(_codes, context), by_name(self.format), folder)
        if frame is not None:
            reader = replace(reader, format=lambda part: frame, parts=[path])
        rows = reader.read()
        rows.refuse_none()
        return grouped(rows, context, folder)


def _codes(context: ContextColumns | None, batch: pl.DataFrame, part: Path) -> dict[str, np.ndarray]:
    return {} if context is None else {"codes": context.read(batch, part).astype(np.int32)}


def read_interactions(path: str | Path, **how: Any) -> Interactions:
    """Read a log into memory: a file, a folder of parts, or a pattern such as `log/*.csv`; also .gz and .zst.

    "auto" finds the format from the file's name, then from its first line. CSV, TSV, JSON lines, Parquet and Feather
    have named columns, which are guessed if none is given; times are numbers or ISO dates. The header of a CSV file
    shows whether `,`, `;`, tab or `|` separates its columns. Without a column of times, rows count as in time order.
    A column of lists of items holds a user's whole history in a row. Ids are numbered in sorted order, whole numbers by
    value and then all others by text: their order reveals nothing about the events.

    Args:
        path: of the log.
        how: fields of `HowToRead`.
    """
    return HowToRead(**how).read(local(path))


def read_frame(frame: Any, **how: Any) -> Interactions:
    """Read the events of a data frame of polars or pandas."""
    return HowToRead(**how).read(FRAME, frame=Frame(frame))


def open_log(log: Path, how: HowToRead, cache: Path | None) -> Interactions:
    """Read a log's events, mapped from a prepared folder if one exists, the log is large or `cache` is given."""
    if is_prepared(log):
        wanted = [name for name, value in asdict(how).items() if value != getattr(HowToRead, name)]
        if wanted:
            raise UserError(
                f"{log} is already prepared, so data.{wanted[0]} cannot change: leave it out, or prepare the log anew"
            )
        return open_prepared(log)
    return _events_of(kept_if_large(log, FORMAT, asdict(how), cache, partial(how.columns, log)), how.context)


def prepare_log(log: Path, how: HowToRead, home: Path) -> tuple[Interactions, bool]:
    """Return a log's events from the folder `home`, and whether this call prepared it."""
    found, made = kept_or_read(log, FORMAT, asdict(how), home, partial(how.columns, log))
    return _events_of(found, how.context), made


def is_prepared(path: Path) -> bool:
    return (path / META).is_file()


def open_prepared(home: Path) -> Interactions:
    """Read the events of a prepared folder, without the log; print its notices again."""
    found = Kept.opened(home)
    if found is None or found.made_of["format"] != FORMAT:
        raise UserError(f"{home} is incomplete or of another version: prepare the log again")
    return _events_of(found.repeated(f"{home}, as it was prepared: "), found.made_of["settings"]["context"])


def settings_of(home: Path) -> dict[str, Any]:
    """Return how the log of a prepared folder was read, as fields of `HowToRead`."""
    found = Kept.opened(home)
    if found is None:
        raise UserError(f"{home} is incomplete: prepare the log again")
    return dict(found.made_of["settings"])


def _events_of(kept: Kept, context: Mapping[str, Any] | None) -> Interactions:
    catalogue, users = kept.tables["catalogue"].collect(), kept.tables["users"]
    codes = kept.columns.get("context")
    return Interactions(
        kept.columns["offsets"],
        kept.columns["items"],
        catalogue["item_id"].to_list(),
        lambda: users.collect()["user_id"],
        catalogue["users"].to_numpy(),
        kept.facts,
        kept.columns.get("ages"),
        None if codes is None or context is None else EventContext(ContextColumns.of(context), codes),
        kept.folder,
    )


def columns_follow_from_events(log: Path, how: HowToRead) -> bool:
    """Whether column names come from people's events, as in JSON, and not from a header or a schema."""
    if is_prepared(log) or not holds_parts(log) or None not in (how.user_column, how.item_column, how.time_column):
        return False
    name = unpacked_name(parts_of(log)[0])
    return any(
        name.endswith(each.endings) if how.format == AUTO else how.format == each.name
        for each in FORMATS
        if not each.says_columns_once
    )


_TOGETHER = 2**22  # rows that are sorted together


def grouped(rows: Rows, context: ContextColumns | None, folder: Path | None) -> Kept:
    """Sort users by id and their events by time; events at equal times keep the log's order.

    Users are sorted in groups of about `_TOGETHER` events; with a folder, the columns are written there. polars would
    sort all events at once, which takes 60 bytes an event (measured with 10 million).
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
        order = _in_time_order(user, time)
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


def _in_time_order(user: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Return the rows' order by user, then time, then place: as np.lexsort, in three quarters of its time.

    The lower bits of each sort key hold a row's place by time.

    >>> _in_time_order(np.array([1, 0, 1, 1]), np.array([5.0, 9.0, 3.0, 5.0])).tolist()
    [1, 2, 0, 3]
    """
    by_time, bits = np.argsort(time, kind="stable"), len(user).bit_length()
    both = user[by_time].astype(np.int64) << bits | np.arange(len(user))
    both.sort()
    return by_time[both & (1 << bits) - 1]


def _of_blocks(user: np.ndarray, place: np.ndarray, offsets: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of some users at a time, in the order of the log."""
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
    """Count events at the same time as the user's event before, and events that are equal to another one."""
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
