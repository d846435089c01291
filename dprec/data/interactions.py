"""Readers of interaction logs: MovieLens and Amazon files, `user item` lines, CSV, TSV, JSON, Parquet and Feather, in
one file or in many parts.

All of them return `Interactions`: events grouped by user, each user's in time order. Events of one user at the same
time keep the order of the log. Ids are text, so `007` and `7` are two ids; `ids` has the rules.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from dprec.data.events import Reading
from dprec.data.histories import Interactions
from dprec.data.parts import parts_of, readable, unpacked_name
from dprec.data.tables import (
    NAMED,
    Format,
    Table,
    choose_columns,
    format_of,
    header,
    named_table,
    pairs_table,
    ratings_table,
)
from dprec.data.times import ReadAgain
from dprec.errors import UserError


def read_interactions(
    path: str | Path,
    format: Format = "auto",
    user_column: str | None = None,
    item_column: str | None = None,
    time_column: str | None = None,
    where: str | None = None,
    scratch: Path | None = None,
    advance: Callable[[int], object] = lambda _: None,
) -> Interactions:
    """Read a log: a file, a folder of parts, or a pattern such as `log/*.csv`; also .gz, .zst, .bz2, .xz and .zip.

    "auto" finds the format from the file's name, then from its first line. CSV, TSV, JSON, Parquet and Feather have
    named columns, which are guessed if none is given; times are numbers or ISO dates. The header of a CSV file shows
    whether `,`, `;`, tab or `|` separates its columns. Without a column of times, rows count as in time order, as in
    `pairs`, which holds `user item` or `user item time` lines. Amazon's ratings (`amazon-csv`) are
    user,item,rating,time without a header. A column of lists of items holds a user's whole history in a row. Ids are
    numbered in the order of their text, or of their value if all are whole numbers, so their order reveals nothing
    about the events. `where`, a condition in SQL on the log's columns, selects the rows to use.

    The whole log is never in memory: large parts go to `scratch`, and the returned arrays are mapped from there.
    Without that folder they are in memory. `advance` is called with the number of rows read, then sorted, then placed.
    """
    path = Path(path)
    if format not in get_args(Format):
        raise UserError(f"data.format is '{format}': give one of {', '.join(get_args(Format))}")
    log = Log(path, format, {"user": user_column, "item": item_column, "time": time_column}, where)
    with tempfile.TemporaryDirectory(prefix="dprec-") as own:
        return log.read(scratch or Path(own), advance).held(in_memory=scratch is None)


@dataclass(frozen=True)
class Log:
    """Where a log is, the names of its columns, and which rows to use."""

    path: Path
    format: Format
    columns: dict[str, str | None]
    where: str | None = None

    def read(self, scratch: Path, advance: Callable[[int], object]) -> Interactions:
        reading = Reading(self.path, scratch, advance)
        while True:
            reading.start_again()
            with suppress(ReadAgain):
                for table in self._tables(scratch):
                    for batch in table.batches():
                        reading.add(batch, table.part)
                    reading.leave_out(table.left_out)
                return reading.finish()

    def _tables(self, scratch: Path) -> Iterator[Table]:
        columns: dict[str, str] = {}
        for part in parts_of(self.path):
            file = readable(part, scratch)
            kind = format_of(file, unpacked_name(part)) if self.format == "auto" else self.format
            if kind in NAMED:
                columns = columns or choose_columns(part, header(file, part, kind)[0], self.columns)
                yield named_table(file, part, kind, columns, self.where)
            elif any(self.columns.values()):
                raise UserError(f"{part} ({kind}) has no named columns: leave data.user_column and the others out")
            elif kind != "pairs":
                yield ratings_table(file, part, kind, self.where)
            elif self.where is not None:
                raise UserError(f"{part} has no other column than user, item and time: leave data.where out")
            else:
                yield pairs_table(file, part)
            if file != part:
                file.unlink()
