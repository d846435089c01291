"""Text with a mark between columns: CSV, TSV, RecBole's `.inter`, GLUE's files, and text without a header."""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import polars as pl

from dprec.data.formats.format import Format, Start, Types, first_line, first_text, text_of
from dprec.data.formats.wanted import plain
from dprec.errors import UserError

_MARKS = {".dat": "::", ".tsv": "\t", ".data": "\t"}  # by the endings of text without a header


def _whole(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows whose fields are all read, since polars looks for lines with too many only then."""
    return rows.map_batches(lambda batch: batch, projection_pushdown=False, streamable=True)


class CSV(Format):
    name = "csv"
    endings: tuple[str, ...] = (".csv",)
    marks: ClassVar[str] = ",;\t|"  # the one that makes most columns of the header; the first of equals
    quote: ClassVar[str | None] = '"'  # around texts; None if it is part of them

    def names(self, part: Path) -> list[str]:
        return self._header(first_text(part, "a header line and at least one event"))[1]

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        mark = self._header(first_line(part))[0]
        return _whole(pl.scan_csv(part, separator=mark, quote_char=self.quote, infer_schema=False))

    def broken(self, part: Path, quote: bool) -> int | None:
        if self.quote is None:
            return None
        mark, names = self._header(first_line(part))
        begins = 1
        try:
            with text_of(part) as file:
                rows = csv.reader(file, delimiter=mark, strict=quote)
                for row in rows:
                    if len(row) > len(names) and not quote:
                        return begins
                    begins = rows.line_num + 1
            return None
        except csv.Error:
            return begins if quote else None
        except (OSError, EOFError, zlib.error, UnicodeDecodeError):  # such as of Zstandard
            return None

    def _header(self, line: str) -> tuple[str, list[str]]:
        if self.quote is None:
            cells = {mark: line.split(mark) for mark in self.marks}
        else:
            cells = {mark: next(csv.reader([line], delimiter=mark)) for mark in self.marks}
        return max(cells.items(), key=lambda pair: len(pair[1]))


class TSV(CSV):
    name = "tsv"
    endings: tuple[str, ...] = (".tsv",)
    marks = "\t"


class GLUE(TSV):
    """GLUE's files: tabs between columns, quotes are part of the text. Only `data.format` asks for it."""

    name = "glue"
    endings = ()
    quote = None


class Unheaded(Format):
    """Text whose columns are named by their places; a first line with these names is left out.

    Args:
        header: the names.
        mark: what stands between columns. `Unheaded.of` takes it from the file's name, never from a record.
        quote: the mark around texts that hold the other mark; None if there is none.
    """

    name = "header"

    def __init__(self, header: Sequence[str], mark: str, quote: str | None = '"') -> None:
        self.header, self.mark, self.quote = list(header), mark, quote

    @classmethod
    def of(cls, header: Sequence[str], part: Path) -> Unheaded:
        """With `::` in .dat, as MovieLens has it, a tab in .tsv and .data, a comma in others."""
        suffixes = Path(part.name.lower()).suffixes
        return cls(header, next((mark for ending, mark in _MARKS.items() if ending in suffixes), ","))

    def names(self, part: Path) -> list[str]:
        cells = self._cells(first_text(part, "at least one record"))
        if len(cells) != len(self.header):
            raise UserError(
                f"{part} has {len(cells)} columns with '{self.mark}' between them, not {len(self.header)} "
                f"({', '.join(self.header[:5])}): give a name for each in data.header"
            )
        return self.header

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        named = [plain(name) for name in self._cells(first_line(part))] == [plain(name) for name in self.header]
        columns = self.header
        if self.mark == "::":  # polars separates at one byte, so between two of them there is an empty column
            columns = [name for place, each in enumerate(columns) for name in (each, f"::{place}")][:-1]
        rows = pl.scan_csv(
            part,
            separator=self.mark[0],
            has_header=False,
            new_columns=columns,
            skip_rows=int(named),
            infer_schema=False,
            quote_char=self.quote,
        )
        return _whole(rows).select(self.header)

    def _cells(self, line: str) -> list[str]:
        plain_text = self.mark == "::" or self.quote is None
        return line.split(self.mark) if plain_text else next(csv.reader([line], delimiter=self.mark))


class Ratings(Unheaded):
    """User, item, rating and time without a header: MovieLens's and Amazon's releases."""

    def __init__(self, name: str, endings: tuple[str, ...], mark: str, is_one: Callable[[Start], bool]) -> None:
        super().__init__(("user", "item", "rating", "time"), mark, quote=None)
        self.name, self.endings, self._is_one = name, endings, is_one

    def recognises(self, start: Start) -> bool:
        return self._is_one(start)

    def types(self, part: Path) -> Types:
        return dict.fromkeys(("rating", "time"), pl.Float64())

    def names(self, part: Path) -> list[str]:
        if self.mark == ",":  # Amazon's; in a later release its columns would protect items in place of users
            ten = pl.col("user", "item").str.len_chars() == 10
            user, item = self.scan(part, ()).head(2**20).select(ten.mean()).collect().row(0)
            if user > 0.9 > item:
                raise UserError(f"{part} has item,user,rating,timestamp a line: swap the first two columns")
        return super().names(part)


def _amazon(start: Start) -> bool:
    return re.fullmatch(r"[^,]+,[^,]+,\d(\.\d)?,\d{9,}", start.line.strip()) is not None


MOVIELENS_TAB = Ratings("movielens-tab", (".data",), "\t", lambda start: start.name == "u.data")
MOVIELENS_DAT = Ratings("movielens-dat", (".dat",), "::", lambda start: start.line.count("::") == 3)
AMAZON = Ratings("amazon-csv", (), ",", _amazon)


class Inter(TSV):
    """RecBole's atomic files: `user_id:token item_id:token timestamp:float`. Columns go by their names alone."""

    name = "inter"
    endings = (".inter",)
    _TYPES: ClassVar[dict[str, pl.DataType]] = {
        "token": pl.String(),
        "float": pl.Float64(),
        "token_seq": pl.String(),
        "float_seq": pl.String(),
    }

    def recognises(self, start: Start) -> bool:
        names = start.line.split("\t")
        return super().recognises(start) or (len(names) > 1 and all(map(self._type, names)))

    def names(self, part: Path) -> list[str]:
        return [self._plain(name) for name in super().names(part)]

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return super().scan(part, wanted).rename(self._plain)

    def types(self, part: Path) -> Types:
        names = self._header(first_line(part))[1]
        return {self._plain(name): self._TYPES[self._type(name)] for name in names if self._type(name)}

    def _type(self, name: str) -> str:
        kind = name.rpartition(":")[2]
        return kind if ":" in name and kind in self._TYPES else ""

    def _plain(self, name: str) -> str:
        return name.rpartition(":")[0] if self._type(name) else name
