"""Readers of interaction logs: MovieLens and Amazon files, `user item` lines, CSV, TSV, JSON, Parquet and Feather, in
one file or in many parts.

All of them give `Interactions`: users grouped, each user's events in time order. Events of one user at
the same time keep the order of the log. Ids are text, so `007` and `7` are two; what is one is said in `ids`.
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
    """Read a log: a file, a folder of parts, or a pattern such as `log/*.csv`; .gz, .zst, .bz2, .xz and .zip, too.

    "auto" goes by the file's name, then by its first line. CSV, TSV, JSON, Parquet and Feather have named columns,
    guessed where none is given; times are numbers or ISO dates. The header of a CSV file says whether it is separated
    by `,`, `;`, tab or `|`. Where no column has times, rows are in time order, as in `pairs`, which holds `user item`,
    or `user item time`, a line. Amazon's ratings (`amazon-csv`) are user,item,rating,time without a header. A column of
    lists of items has a user's whole history in a row. Ids are numbered in the order of their text, or of their value
    where all of them are whole numbers: it says nothing about the events. Rows count that are as `where` says, a
    condition in SQL on the columns of the log.

    A log is never whole in memory: what does not fit is kept in `scratch`, and the arrays that are returned are mapped
    from there. Without a folder they are in memory. `advance` is called with how many rows have been read, then sorted,
    then placed.
    """
    path = Path(path)
    if format not in get_args(Format):
        raise UserError(f"data.format is '{format}': give one of {', '.join(get_args(Format))}")
    log = Log(path, format, {"user": user_column, "item": item_column, "time": time_column}, where)
    with tempfile.TemporaryDirectory(prefix="dprec-") as own:
        return log.read(scratch or Path(own), advance).held(in_memory=scratch is None)


@dataclass(frozen=True)
class Log:
    """Where a log lies, how its columns are called, and which of its rows count."""

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
                raise UserError(f"{part} has no column beside user, item and time: leave data.where out")
            else:
                yield pairs_table(file, part)
            if file != part:
                file.unlink()
