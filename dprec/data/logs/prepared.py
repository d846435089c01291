"""A log's events in a folder, made once and then mapped into memory: opening takes no time for any size.

    items.int32        the item of every event, as its place in the catalogue: user after user, each in time order
    context.int32      what is known of every event beside its item; missing if data.context names no columns
    ages.uint32        how many seconds before the last event of the log each one was; missing if times have no unit
    offsets.int64      user u's events are offsets[u] to offsets[u + 1]
    catalogue.parquet  item_id and users (how many saw it), in the order of the places
    users.parquet      user_id, in the order of the users
    meta.json          the state of the log, facts about it, what was said of it, and sizes of the files; written last

The folder holds people's histories and is as private as the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dprec.data.arrays.made_once import MADE_OF, META, facts_of, make_once
from dprec.data.logs.context import ContextColumns
from dprec.data.logs.event_parts import EventContext
from dprec.data.logs.histories import Interactions
from dprec.data.logs.parts import state_of
from dprec.errors import UserError
from dprec.notices import kept, say

FORMAT = 3  # raise it when the content of the files changes
_ITEMS, _AGES, _CONTEXT, _OFFSETS = "items.int32", "ages.uint32", "context.int32", "offsets.int64"
_CATALOGUE, _USERS = "catalogue.parquet", "users.parquet"


def is_prepared(path: Path) -> bool:
    return (path / META).is_file()


def prepare(
    log: Path, settings: Mapping[str, Any], home: Path, read: Callable[[Path], Interactions]
) -> tuple[Interactions, bool]:
    """The events of a log from `home`, and whether this call made them by `read`, which gets a folder to work in."""

    def write(work: Path) -> dict[str, Any]:
        with kept() as said:
            events = read(work)
        return _write(replace(events, said=said), work)

    def state() -> dict[str, Any]:
        return {"format": FORMAT, **state_of(log, settings)}

    room = "preparing a log takes about 32 bytes an event"
    events, made = make_once(home, log, state, lambda state: _opened(home, state), write, room)
    return (events if made else _repeated(events)), made


def settings_of(home: Path) -> dict[str, Any]:
    """How the log of a prepared folder was read, by the names of `HowToRead`."""
    return dict(json.loads((home / META).read_text(encoding="utf-8"))[MADE_OF]["settings"])


def open_prepared(home: Path) -> Interactions:
    """The events of a prepared folder, which does not need the log; says what preparing it said."""
    events = _opened(home, None)
    if events is None:
        raise UserError(f"{home} is incomplete or of another version: prepare the log again")
    return _repeated(events, f"{home}, as it was prepared: ")


def _repeated(events: Interactions, before: str = "") -> Interactions:
    """Say again what was said when the events were prepared."""
    for text in events.said:
        say(f"{before}{text}")
    return events


def _opened(home: Path, state: Mapping[str, Any] | None) -> Interactions | None:
    meta = facts_of(home, state)
    try:
        if meta is None or meta[MADE_OF]["format"] != FORMAT:
            return None
        offsets = np.memmap(home / _OFFSETS, dtype=np.int64, mode="r")
        catalogue = pl.read_parquet(home / _CATALOGUE)
        users = pl.scan_parquet(home / _USERS)
        shape = (int(offsets[-1]),)
        item = np.memmap(home / _ITEMS, dtype=np.int32, mode="r", shape=shape)
        ages, codes = (
            np.memmap(home / name, dtype=kind, mode="r", shape=shape) if name in meta["bytes"] else None
            for name, kind in ((_AGES, np.uint32), (_CONTEXT, np.int32))
        )
        named = meta[MADE_OF]["settings"].get("context")
        return Interactions(
            offsets,
            item,
            catalogue["item_id"].to_list(),
            read_user_ids=lambda: users.collect()["user_id"],
            item_users=catalogue["users"].to_numpy(),
            facts=meta["found"],
            ages=ages,
            context=None if codes is None else EventContext(ContextColumns.of(named), codes),
            said=[str(text) for text in meta.get("said", ())],  # folders of before have none
            folder=home,
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, pl.exceptions.PolarsError):
        return None  # missing, or damaged


def _write(events: Interactions, folder: Path) -> dict[str, Any]:
    _put(events.item, folder / _ITEMS)
    codes = None if events.context is None else events.context.codes
    more = {name: column for name, column in ((_AGES, events.ages), (_CONTEXT, codes)) if column is not None}
    for name, column in more.items():
        _put(column, folder / name)
    events.offsets.astype(np.int64).tofile(folder / _OFFSETS)
    pl.DataFrame({"item_id": events.item_ids, "users": events.item_users}).write_parquet(folder / _CATALOGUE)
    pl.DataFrame({"user_id": events.user_ids}).write_parquet(folder / _USERS)
    return {"found": events.facts, "said": list(events.said)}


def _put(column: np.ndarray, file: Path) -> None:
    """Write a column of the events, or rename the file that it is mapped from."""
    if isinstance(column, np.memmap):
        column.flush()
        Path(str(column.filename)).rename(file)
    else:
        column.tofile(file)
