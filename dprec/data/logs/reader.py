"""The reader of histories, clicks and texts: turns the parts of a log into columns of numbers, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
from rich.console import Console
from rich.text import Text

from dprec.data.formats import AUTO, format_of, refuse_unknown
from dprec.data.formats.format import THE_ROWS, Format, Table
from dprec.data.formats.wanted import Wanted
from dprec.data.logs.ids import Ids, normal
from dprec.data.logs.parts import parts_of
from dprec.data.logs.store import ColumnStore
from dprec.data.logs.times import Times
from dprec.errors import UserError

Features = Callable[[pl.DataFrame, Path], Mapping[str, np.ndarray]]
_A = {"user": "a user", "item": "an item"}


@dataclass
class LogReader:
    """Reads the rows of a log that have all ids, in the order of the log.

    How a row is read depends on that row alone, so no one's row decides how others are read.

    Args:
        path: a file, a folder of parts, or a pattern such as `log/*.csv`.
        wanted: the columns by their roles, and which rows to use. Roles user and item are ids, time is the time.
        features: computes more columns from a batch, which has a column for each role, and `row`.
        format: finds the format of a part.
        folder: where the columns are written; without one they are in memory.
        parts: the parts, if they are not those that the path names.
        nameless: the files in the folder have no names, and disappear when no process maps them.
    """

    path: Path
    wanted: Wanted
    features: Features
    format: Callable[[Path], Format] = format_of
    folder: Path | None = None
    parts: Sequence[Path] | None = None
    nameless: bool = True

    def tables(self) -> Iterator[Table]:
        """Yield the table of each part."""
        for part in self.parts or parts_of(self.path):
            yield self.format(part).table(part, self.wanted)

    def read(self) -> Rows:
        """All rows."""
        store = ColumnStore(self.folder, self.nameless)
        rows = Rows(self.path)
        with Console(stderr=True).status("") as status:
            for table in self.tables():
                rows.time_from = table.time
                for batch in table.batches():
                    rows.read += len(batch)
                    self._add(batch, table.part, rows, store)
                    status.update(Text(f"reading {self.path}: {rows.read:,} rows"))
                rows.read += table.left_out
                rows.left_out += table.left_out
                rows.ends.append(store.rows)
        rows.columns = store.whole()
        return rows

    def _add(self, batch: pl.DataFrame, part: Path, rows: Rows, store: ColumnStore) -> None:
        found: dict[str, np.ndarray] = {}
        kept = np.ones(len(batch), dtype=bool)
        for role in ("user", "item"):
            if role in batch.columns:
                found[role] = rows.ids.setdefault(role, Ids(self.path, role)).read(single(batch, part, role))
                rows.without[role] = rows.without.get(role, 0) + int((kept & (found[role] < 0)).sum())
                kept &= found[role] >= 0
        if not kept.all():  # rarely, so most batches are not copied
            batch, found = batch.filter(pl.Series(kept)), {role: own[kept] for role, own in found.items()}
        rows.timed = "time" in batch.columns
        if rows.timed:
            found["time"] = rows.times.read(single(batch, part, "time"), part, batch["row"].to_numpy())
        store.add(**found, **self.features(batch, part))


@dataclass
class Rows:
    """Columns in the order of the log, and counts of all rows that were read. Private data."""

    path: Path
    times: Times = field(default_factory=Times)
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    ids: dict[str, Ids] = field(default_factory=dict)  # by role
    read: int = 0  # rows, those left out among them
    left_out: int = 0  # rows for which `data.where` does not hold
    without: dict[str, int] = field(default_factory=dict)  # rows without a user, or with one and without an item
    timed: bool = False
    time_from: str = THE_ROWS  # in words
    ends: list[int] = field(default_factory=list)  # where the rows of each part end

    @property
    def kept(self) -> int:
        """Rows in the columns."""
        return self.ends[-1] if self.ends else 0

    @property
    def facts(self) -> dict[str, int]:
        """Counts of what was read and left out."""
        counts = {f"without_{role}_id": self.without.get(role, 0) for role in ("user", "item") if role in self.ids}
        return {"rows": self.read, "not_as_where_says": self.left_out, **counts}

    @property
    def span(self) -> str:
        """The span of all times, in words."""
        return self.times.said if self.timed else "none"

    def refuse_none(self) -> None:
        """Print how many rows have no id, and refuse a log without any other rows: `NULL` is not a person."""
        if not self.read:
            raise UserError(f"{self.path} is empty: an interaction log has at least one event")
        if self.left_out == self.read:
            raise UserError(f"{self.path}: data.where holds for none of its {self.read:,} rows: change the condition")
        for role, count in self.without.items():
            if count == self.read - self.left_out:
                raise UserError(f"{self.path}: no row has {_A[role]} id: is it another column? set data.{role}_column")
            if count:
                self.ids[role].say_without(count)
        if not self.kept:
            raise UserError(
                f"{self.path}: no row has both a user id and an item id: check data.user_column and data.item_column"
            )
        if self.timed:
            self.times.finish(self.path)


def by_name(name: str) -> Callable[[Path], Format]:
    """Return a function that finds a part's format: this one, or with "auto" the part's own."""
    refuse_unknown(name)
    return format_of if name == AUTO else partial(format_of, name=name)


def single(batch: pl.DataFrame, part: Path, role: str) -> pl.Series:
    """A column of single values."""
    column = batch[role]
    if column.dtype.is_nested():
        setting = f"{role}_column"
        raise UserError(f"{part}: the {setting} holds {column.dtype}: write one event a row, or set data.{setting}")
    return column


def numbers(column: pl.Series, rows: pl.Series, part: Path, name: str, instead: str) -> np.ndarray:
    """(n,) float64, NaN if a value is missing; `instead` says how else the column can be read.

    >>> numbers(pl.Series(["1.5", " 2 ", "NULL", None]), pl.Series(range(4)), Path("log.csv"), "price", "").tolist()
    [1.5, 2.0, nan, nan]
    """
    wanted = f"want a number or nothing; mend it, or {instead}"
    if column.dtype.is_nested() or column.dtype.is_temporal():
        raise UserError(f"{part}: column '{name}' holds {column.dtype}: {wanted}")
    values = column.cast(pl.Float64, strict=False)
    odd = values.is_null() & column.is_not_null()
    if odd.any():  # such as a number with white space around it, or NULL
        text = normal_values(column.filter(odd))
        read = text.cast(pl.Float64, strict=False)
        refuse(read.is_null() & text.is_not_null(), column.filter(odd), rows.filter(odd), part, name, wanted)
        values = values.scatter(np.flatnonzero(odd.to_numpy()), read)
    return values.fill_null(np.nan).to_numpy()


def labels(
    column: pl.Series, rows: pl.Series, part: Path, name: str, classes: Mapping[str, int], wanted: str, mend: str
) -> np.ndarray:
    """(n,) int64: the number of each value's class. Errors for other values give `wanted`, for missing ones `mend`."""
    read = column.replace_strict(classes, default=None, return_dtype=pl.Int64)
    refuse(read.is_null() & column.is_not_null(), column, rows, part, name, wanted)
    refuse(read.is_null(), column, rows, part, name, mend)
    return read.to_numpy()


def normal_values(column: pl.Series) -> pl.Series:
    """Values normalised as ids are."""
    return column.to_frame("it").select(normal(pl.col("it"))).to_series()


def refuse(wrong: pl.Series, column: pl.Series, rows: pl.Series, part: Path, name: str, wanted: str) -> None:
    """Refuse the first wrong value of a column; `rows` are the rows' numbers in the part, from 0."""
    if wrong.any():
        place = wrong.arg_max() or 0
        shown = "missing" if column[place] is None else f"'{str(column[place])[:40]}'"
        raise UserError(f"{part}: data row {rows[place] + 1}: '{name}' is {shown}: {wanted}")
