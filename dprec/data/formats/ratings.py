"""Lines of user, item, rating and time without a header: MovieLens's and Amazon's releases."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import polars as pl

from dprec.data.formats import table as tables
from dprec.data.formats.columns import GUESSES
from dprec.data.formats.condition import Condition
from dprec.data.formats.format import Format, Start, Wanted
from dprec.data.formats.table import THE_ROWS, Table, one_line
from dprec.errors import UserError

_NUMBERS = dict.fromkeys(("rating", "time"), pl.Float64())


class Ratings(Format):
    def __init__(
        self,
        name: str,
        endings: tuple[str, ...],
        is_one: Callable[[Start], bool],
        separator: str,
        places: tuple[int, int, int, int],
    ) -> None:
        self.name, self.endings, self._is_one = name, endings, is_one
        self._separator, self._places = separator, places  # of user, item, time and rating

    def recognises(self, start: Start) -> bool:
        return self._is_one(start)

    def table(self, path: Path, part: Path, wanted: Wanted) -> Table:
        wanted.refuse_columns(part, self.name)
        columns = [*GUESSES, "rating"]
        where = None if wanted.where is None else Condition.read(wanted.where, part, columns, lambda: _NUMBERS)
        with one_line(part):
            whole = pl.scan_csv(path, has_header=False, separator=self._separator, quote_char=None, infer_schema=False)
            if len(whole.collect_schema()) <= max(self._places):
                raise UserError(f"{part} is not {self.name}: each line must have user, item, rating and time")
            frame = whole.select(pl.nth(place).alias(role) for place, role in zip(self._places, columns, strict=True))
            self._check(frame, part)
        other = ["rating", "time"] if wanted.by_row else ["rating"]
        time = THE_ROWS if wanted.by_row else f"column {self._places[2] + 1}"
        return Table(part, frame, lambda batch: batch.drop(other), time, where)

    def _check(self, frame: pl.LazyFrame, part: Path) -> None:
        """Refuse a file whose columns are in another order."""


class AmazonRatings(Ratings):
    def _check(self, frame: pl.LazyFrame, part: Path) -> None:
        ten = frame.head(tables.ROWS).select((pl.col(role).str.len_chars() == 10).mean() for role in ("user", "item"))
        user, item = ten.collect().row(0)
        if user > 0.9 > item:  # a later release: its columns would protect items in place of users
            raise UserError(f"{part} has item,user,rating,timestamp a line: swap the first two columns")


def _amazon(start: Start) -> bool:
    return re.fullmatch(r"[^,]+,[^,]+,\d(\.\d)?,\d{9,}", start.line.strip()) is not None


MOVIELENS_TAB = Ratings("movielens-tab", (".data",), lambda start: start.name == "u.data", "\t", (0, 1, 3, 2))
# polars separates at one byte, so `::` gives an empty column
MOVIELENS_DAT = Ratings("movielens-dat", (".dat",), lambda start: start.line.count("::") == 3, ":", (0, 2, 6, 4))
AMAZON = AmazonRatings("amazon-csv", (), _amazon, ",", (0, 1, 3, 2))
