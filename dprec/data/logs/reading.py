"""From a path to the events of a log: from a prepared folder, prepared now if the log is large, or read into memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from dprec.data.formats import AUTO, FORMATS, rows_about
from dprec.data.formats.compression import unpacked_name
from dprec.data.logs.context import ContextColumns
from dprec.data.logs.histories import Interactions
from dprec.data.logs.interactions import read_interactions
from dprec.data.logs.parts import holds_parts, home_of, is_kept, parts_of
from dprec.data.logs.prepared import is_prepared, open_prepared, prepare
from dprec.errors import UserError


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


def open_log(log: Path, how: HowToRead, cache: Path | None) -> Interactions:
    """The events of a log, mapped from a prepared folder if one exists, the log is large or `cache` is given."""
    if is_prepared(log):
        return _prepared(log, how)
    home = home_of(log, asdict(how), cache)
    if not is_kept(log, home, cache):
        return read_interactions(log, **asdict(how))
    return prepare_log(log, how, home)[0]


def prepare_log(log: Path, how: HowToRead, home: Path) -> tuple[Interactions, bool]:
    """The events of a log from `home`, and whether this call prepared them, with a progress bar."""

    def read(work: Path) -> Interactions:
        with shown(log, passes=3) as advance:  # reading, sorting, placing
            return read_interactions(log, **asdict(how), scratch=work, advance=advance)

    return prepare(log, asdict(how), home, read)


def _prepared(folder: Path, how: HowToRead) -> Interactions:
    wanted = [name for name, value in asdict(how).items() if value != getattr(HowToRead, name)]
    if wanted:
        raise UserError(
            f"{folder} is already prepared, so data.{wanted[0]} cannot change: leave it out, or prepare the log anew"
        )
    return open_prepared(folder)


@contextmanager
def shown(log: Path, passes: int) -> Iterator[Callable[[int], object]]:
    """Progress over so many passes over all rows."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"preparing {log}, once", total=passes * max(1, sum(map(_rows, parts_of(log)))))
        yield lambda rows: progress.advance(task, rows)


def _rows(part: Path) -> int:
    try:
        return rows_about(part)
    except (OSError, zlib.error, pl.exceptions.PolarsError):
        return 0  # reading it will report what is wrong
