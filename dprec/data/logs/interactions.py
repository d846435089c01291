"""From a path or a data frame to the events of a log: grouped by user, each user's in time order.

A log of 256 MB and more is read once, into a folder beside it, and mapped into memory from then on:

    items.int32        the item of every event, as its place in the catalogue: user after user, each in time order
    context.int32      what is known of every event beside its item; missing if data.context names no columns
    ages.uint32        how many seconds before the last event of the log each one was; missing if times have no unit
    offsets.int64      user u's events are offsets[u] to offsets[u + 1]
    catalogue.parquet  item_id and users (how many saw it), in the order of the places
    users.parquet      user_id, in the order of the users
"""

from __future__ import annotations

from collections.abc import Mapping
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
from dprec.data.logs.grouping import grouped
from dprec.data.logs.histories import EventContext, Interactions
from dprec.data.logs.parts import holds_parts, parts_of
from dprec.data.logs.reader import LogReader, by_name
from dprec.data.logs.store import META, Kept, kept_if_large, kept_or_read
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
        if self.context is not None:  # written in one way, since the name of a prepared folder follows from it
            object.__setattr__(self, "context", ContextColumns.of(self.context).plain)

    def read(self, path: Path, folder: Path | None = None, frame: Frame | None = None) -> Interactions:
        """The events of a log, or of a data frame; with a folder its columns are written there."""
        return _events_of(self.columns(path, folder, frame), self.context)

    def columns(self, path: Path, folder: Path | None = None, frame: Frame | None = None) -> Kept:
        """The same as columns and tables of text."""
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
    A column of lists of items holds a user's whole history in a row. Ids are numbered in order, whole numbers by their
    value and then all others by their text: their order reveals nothing about the events.

    Args:
        path: of the log.
        how: fields of `HowToRead`.
    """
    return HowToRead(**how).read(Path(path))


def read_frame(frame: Any, **how: Any) -> Interactions:
    """The same from a data frame of polars or pandas."""
    return HowToRead(**how).read(FRAME, frame=Frame(frame))


def open_log(log: Path, how: HowToRead, cache: Path | None) -> Interactions:
    """The events of a log, mapped from a prepared folder if one exists, the log is large or `cache` is given."""
    if is_prepared(log):
        wanted = [name for name, value in asdict(how).items() if value != getattr(HowToRead, name)]
        if wanted:
            raise UserError(
                f"{log} is already prepared, so data.{wanted[0]} cannot change: leave it out, or prepare the log anew"
            )
        return open_prepared(log)
    return _events_of(kept_if_large(log, FORMAT, asdict(how), cache, partial(how.columns, log)), how.context)


def prepare_log(log: Path, how: HowToRead, home: Path) -> tuple[Interactions, bool]:
    """The events of a log from `home`, and whether this call prepared them."""
    found, made = kept_or_read(log, FORMAT, asdict(how), home, partial(how.columns, log))
    return _events_of(found, how.context), made


def is_prepared(path: Path) -> bool:
    return (path / META).is_file()


def open_prepared(home: Path) -> Interactions:
    """The events of a prepared folder, which does not need the log; says what preparing it said."""
    found = Kept.opened(home)
    if found is None or found.made_of["format"] != FORMAT:
        raise UserError(f"{home} is incomplete or of another version: prepare the log again")
    return _events_of(found.repeated(f"{home}, as it was prepared: "), found.made_of["settings"]["context"])


def settings_of(home: Path) -> dict[str, Any]:
    """How the log of a prepared folder was read, by the names of `HowToRead`."""
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
    """Whether columns are chosen by names that events of people say, as in JSON, and not by a header or a schema."""
    if is_prepared(log) or not holds_parts(log) or None not in (how.user_column, how.item_column, how.time_column):
        return False
    name = unpacked_name(parts_of(log)[0])
    return any(
        name.endswith(each.endings) if how.format == AUTO else how.format == each.name
        for each in FORMATS
        if not each.says_columns_once
    )
