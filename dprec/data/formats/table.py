"""A part of a log as a table: its rows in order, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import polars as pl

from dprec.data.formats.condition import Condition
from dprec.data.formats.wanted import setting_of
from dprec.errors import UserError, first_line

ROWS, _CELLS = 2**20, 2**22  # in a batch, at most
THE_ROWS = "the order of the rows"
_NUMBER = "\0row"  # of a row in its part: a log may have a column `row`
# Finds the line, from 1, in which a record begins with a quote that does not end, or else is no record of the format.
Broken: TypeAlias = "Callable[[bool], int | None]"
Types: TypeAlias = Mapping[str, pl.DataType]


@dataclass
class Table:
    """A part of a log whose rows are read when they are asked for.

    Args:
        part: the path that the user gave, for messages.
        frame: the rows, lazily, with the columns that are needed.
        columns: the column of each role; a batch names its columns by their roles.
        where: the condition that rows must meet.
        lists: roles of columns that hold a user's whole history in a row; each entry becomes a row.
        broken: finds the line to name where polars only says that the file is broken.
    """

    part: Path
    frame: pl.LazyFrame
    columns: Mapping[str, str]
    where: Condition | None = None
    lists: list[str] | None = None
    broken: Broken = lambda quote: None
    left_out: int = 0  # rows so far for which `where` does not hold

    @property
    def time(self) -> str:
        """What gives the order in time, in words."""
        return f"column '{self.columns['time']}'" if "time" in self.columns else THE_ROWS

    def batches(self) -> Iterator[pl.DataFrame]:
        """Rows in order: a column for each role, and `row`, each row's number in the part from 0."""
        roles = [pl.col(_NUMBER).alias("row"), *(pl.col(name).alias(role) for role, name in self.columns.items())]
        with one_line(self.part, self.broken):
            first = 0
            size = min(ROWS, _CELLS // max(1, len(self.columns)))
            for batch in self.frame.collect_batches(chunk_size=size, maintain_order=True, engine="streaming"):
                rows = batch.with_row_index(_NUMBER, offset=first)
                first += len(batch)
                if self.where is not None:
                    rows = rows.filter(self.where.holds(batch))
                    self.left_out += len(batch) - len(rows)
                if len(rows):
                    chosen = rows.select(roles)
                    yield chosen.explode(self.lists) if self.lists else chosen


def lists_among(types: Types, columns: Mapping[str, str], part: Path) -> list[str]:
    """The roles of columns that hold a user's whole history in one row."""
    lists = [role for role, name in columns.items() if isinstance(types[name], pl.List)]
    for role, name in columns.items():
        held = types[name]
        inner = held.inner if isinstance(held, pl.List) else held
        if inner.is_nested() or (role == "user" and role in lists) or inner == pl.Time:
            raise UserError(
                f"{part}: column '{name}' holds {types[name]}, which cannot be the {role}: set {setting_of(role)}, "
                "or write one event a row"
            )
    if lists and "item" not in lists:
        odd = columns[lists[0]]
        raise UserError(f"{part}: '{odd}' holds lists and '{columns['item']}' does not: give both as lists")
    return lists


@contextmanager
def one_line(path: Path, broken: Broken = lambda quote: None) -> Iterator[None]:
    """Turn polars' errors about a broken file into one line."""
    try:
        yield
    except pl.exceptions.NoDataError as error:
        raise UserError(f"{path} is empty: an interaction log has at least one event") from error
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        if "utf-8" in str(error).lower():
            raise not_utf8(path) from error
        if "more fields" in str(error):
            line = broken(False)
            where = "" if line is None else f", such as line {line:,}"
            raise UserError(f"{path} has lines with more fields than the first{where}: mend or quote them") from error
        if str(error).startswith('could not parse `"'):
            line = broken(True)
            where = "a field" if line is None else f"a field in line {line:,}"
            begins = first_line(error).removeprefix("could not parse `").partition("`")[0][:60]
            raise UserError(
                f"{path} has {where} that begins with a quote and does not end, {begins}: close it"
            ) from error
        if "parsing line" in str(error) and (line := broken(False)) is not None:
            raise UserError(f"{path} line {line:,} is not a JSON object: mend it, or leave it out") from error
        raise UserError(f"cannot read {path}: {first_line(error)}") from error


def not_utf8(path: Path, instead: str = "latin1") -> UserError:
    return UserError(f"{path} is not UTF-8 text: convert it, such as with iconv -f {instead} -t utf-8")


def refuse_other_encodings(path: Path) -> None:
    """Refuse UTF-16, as spreadsheets write it: its bytes would come back as names of columns."""
    with open(path, "rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise not_utf8(path, "utf-16")
