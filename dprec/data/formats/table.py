"""A part of a log as a table: its rows in order, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import polars as pl

from dprec.data.formats.condition import Condition
from dprec.errors import UserError, first_line

ROWS = 2**20  # in a batch
THE_ROWS = "the order of the rows"
# Finds the line, from 1, in which a record begins with a quote that does not end, or else is no record of the format.
Broken: TypeAlias = "Callable[[bool], int | None]"


@dataclass
class Table:
    """A part; its rows are read when they are asked for."""

    part: Path  # the path that the user gave
    frame: pl.LazyFrame
    events: Callable[[pl.DataFrame], pl.DataFrame]  # a batch of rows to columns user, item and perhaps time, and `row`
    time: str = THE_ROWS  # what gives the order in time, in words
    where: Condition | None = None
    number: str = "row"  # the name under which `events` finds a row's number in the part
    broken: Broken = lambda quote: None
    left_out: int = 0  # rows so far for which `where` does not hold

    def batches(self) -> Iterator[pl.DataFrame]:
        """Rows in order, each with its number in the part, from 0."""
        with one_line(self.part, self.broken):
            first = 0
            for batch in self.frame.collect_batches(chunk_size=ROWS, maintain_order=True, engine="streaming"):
                rows = batch.with_row_index(self.number, offset=first)
                first += len(batch)
                if self.where is not None:
                    rows = rows.filter(self.where.holds(batch))
                    self.left_out += len(batch) - len(rows)
                if len(rows):
                    yield self.events(rows)


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


def lines_of(path: Path) -> pl.LazyFrame:
    """A text file's lines as column `line`."""
    lines = pl.scan_csv(path, has_header=False, separator="\n", quote_char=None, infer_schema=False)
    return lines.select(pl.first().alias("line"))
