"""Readers of interaction logs: a file of any of `dprec.data.formats`, many parts, or a data frame.

All of them return `Interactions`: events grouped by user, each user's in time order. Events of one user at the same
time keep the order of the log. Ids are text, so `007` and `7` are two ids; `ids` has the rules.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dprec.data.formats import AUTO, format_of, refuse_unknown
from dprec.data.formats.format import Wanted
from dprec.data.formats.frame import FRAME, frame_table
from dprec.data.formats.table import Table
from dprec.data.logs.context import ContextColumns
from dprec.data.logs.events import Reading
from dprec.data.logs.histories import Interactions
from dprec.data.logs.parts import tables_of
from dprec.data.logs.times import ReadAgain


def read_interactions(
    path: str | Path,
    format: str = AUTO,
    user_column: str | None = None,
    item_column: str | None = None,
    time_column: str | None = None,
    where: str | None = None,
    context: Mapping[str, Any] | None = None,
    scratch: Path | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Interactions:
    """Read a log: a file, a folder of parts, or a pattern such as `log/*.csv`; also .gz, .zst, .bz2, .xz and .zip.

    "auto" finds the format from the file's name, then from its first line. CSV, TSV, JSON, Parquet and Feather have
    named columns, which are guessed if none is given; times are numbers or ISO dates. The header of a CSV file shows
    whether `,`, `;`, tab or `|` separates its columns. Without a column of times, rows count as in time order, as in
    `pairs`, which holds `user item` or `user item time` lines. Amazon's ratings (`amazon-csv`) are
    user,item,rating,time without a header. A column of lists of items holds a user's whole history in a row. Ids are
    numbered in order, whole numbers by their value and then all others by their text: their order reveals nothing about
    the events. `where`, a condition in SQL on the log's columns, selects the rows to use. `context` names the
    columns of what is known of each event beside its item (`ContextColumns.of`).

    The whole log is never in memory: large parts go to `scratch`, and the returned arrays are mapped from there.
    Without that folder they are in memory. `advance` is called with the number of rows read, then sorted, then placed.
    """
    path = Path(path)
    refuse_unknown(format)
    columns = {"user": user_column, "item": item_column, "time": time_column}
    log = Log(path, format, columns, where, _columns_of(context))
    with tempfile.TemporaryDirectory(prefix="dprec-") as own:
        return log.read(scratch or Path(own), advance).held(in_memory=scratch is None)


def read_frame(
    frame: Any,
    user_column: str | None = None,
    item_column: str | None = None,
    time_column: str | None = None,
    where: str | None = None,
    context: Mapping[str, Any] | None = None,
) -> Interactions:
    """The same from a data frame of polars or pandas."""
    context_columns = _columns_of(context)
    wanted = _wanted({"user": user_column, "item": item_column, "time": time_column}, where, context_columns)
    with tempfile.TemporaryDirectory(prefix="dprec-") as own:
        found = _read(lambda: [frame_table(frame, wanted)], FRAME, Path(own), lambda _: None, context_columns)
        return found.held(in_memory=True)


@dataclass(frozen=True)
class Log:
    """Where a log is, the names of its columns, and which rows to use."""

    path: Path
    format: str
    columns: dict[str, str | None]
    where: str | None = None
    context_columns: ContextColumns | None = None

    def read(self, scratch: Path, advance: Callable[[int], object]) -> Interactions:
        return _read(lambda: self._tables(scratch), self.path, scratch, advance, self.context_columns)

    def _tables(self, scratch: Path) -> Iterator[Table]:
        wanted = _wanted(self.columns, self.where, self.context_columns)
        return tables_of(self.path, wanted, partial(format_of, name=self.format), scratch)


def _columns_of(context: Mapping[str, Any] | None) -> ContextColumns | None:
    return None if context is None else ContextColumns.of(context)


def _wanted(columns: Mapping[str, str | None], where: str | None, context: ContextColumns | None) -> Wanted:
    return Wanted({**columns, **({} if context is None else context.roles)}, where)


def _read(
    tables: Callable[[], Iterable[Table]],
    path: Path,
    scratch: Path,
    advance: Callable[[int], object],
    context_columns: ContextColumns | None,
) -> Interactions:
    reading = Reading(path, scratch, advance, context_columns)
    while True:
        reading.start_again()
        with suppress(ReadAgain):
            for table in tables():
                reading.time_from = table.time
                for batch in table.batches():
                    reading.add(batch, table.part)
                reading.leave_out(table.left_out)
            return reading.finish()
