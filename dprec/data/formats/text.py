"""Text: CSV, TSV, RecBole's `.inter`, GLUE's files, columns without a header, JSON lines, and `user item` lines."""

from __future__ import annotations

import csv
import json
import re
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from dprec.data.formats.format import Format, Start, Table, Types, first_text, line_of, lines_of, text_of
from dprec.data.formats.wanted import Wanted, looks_like, plain
from dprec.errors import UserError
from dprec.notices import heard_by

_MARKS = {".dat": "::", ".tsv": "\t", ".data": "\t"}  # by the endings of text without a header


def _whole(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows with all fields read: only then polars notices lines with too many."""
    return rows.map_batches(lambda batch: batch, projection_pushdown=False, streamable=True)


class CSV(Format):
    name = "csv"
    endings: tuple[str, ...] = (".csv",)
    marks: ClassVar[str] = ",;\t|"  # separators: the one that divides the header into most columns, the first of equals
    quote: ClassVar[str | None] = '"'  # around texts; None if it is part of them

    def names(self, part: Path) -> list[str]:
        return self._header(first_text(part, "a header line and at least one event"))[1]

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        mark = self._header(line_of(part))[0]
        return _whole(pl.scan_csv(part, separator=mark, quote_char=self.quote, infer_schema=False))

    def broken(self, part: Path, quote: bool) -> int | None:
        if self.quote is None:
            return None
        mark, names = self._header(line_of(part))
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
    """Text without a header: `header` names the columns; a first line with these names is left out.

    Args:
        header: the names.
        mark: the separator of columns. `Unheaded.of` chooses it by the file's name, never by a record.
        quote: the mark around texts that contain the separator; None if there is none.
    """

    name = "header"

    def __init__(self, header: Sequence[str], mark: str, quote: str | None = '"') -> None:
        self.header, self.mark, self.quote = list(header), mark, quote

    @classmethod
    def of(cls, header: Sequence[str], part: Path) -> Unheaded:
        """Choose the separator: `::` in .dat, as in MovieLens, a tab in .tsv and .data, a comma in others."""
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
        named = [plain(name) for name in self._cells(line_of(part))] == [plain(name) for name in self.header]
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
        if self.mark == ",":  # Amazon's; a later release's column order would protect items instead of users
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
    """RecBole's atomic files: `user_id:token item_id:token timestamp:float`. Types are not part of columns' names."""

    name = "inter"
    endings = (".inter",)
    _TYPED: ClassVar = re.compile(r"(?<=.):(token|float)(_seq)?(?=\t|$)")

    def recognises(self, start: Start) -> bool:
        return super().recognises(start) or len(self._TYPED.findall(start.line)) == start.line.count("\t") + 1 > 1

    def names(self, part: Path) -> list[str]:
        return [self._TYPED.sub("", name) for name in super().names(part)]

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return super().scan(part, wanted).rename(lambda name: self._TYPED.sub("", name))


_EXAMPLE = '{"user_id": "a", "item_id": "b", "timestamp": 1588615855}'
_TIME = re.compile(r"-?\d+(\.\d+)?|\d{4}-\d\d-\d\d\S*")


class JSONLines(Format):
    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")
    says_columns_once = False

    def names(self, part: Path) -> list[str]:
        line = first_text(part, "at least one event")
        found = _object(line)
        if found is not None:
            return list(found)
        if line.lstrip().startswith("["):
            raise UserError(f"{part} is an array: write its objects one a line, such as with jq -c '.[]'")
        raise UserError(f"{part} line 1 is not a JSON object: give one event a line, such as {_EXAMPLE}")

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return pl.scan_ndjson(part, schema=dict.fromkeys(wanted, pl.String))

    def broken(self, part: Path, quote: bool) -> int | None:
        with suppress(OSError, EOFError, zlib.error, UnicodeDecodeError), text_of(part) as file:
            return next((n for n, line in enumerate(file, start=1) if line.strip() and _object(line) is None), None)
        return None


def _object(line: str) -> dict[str, Any] | None:
    with suppress(json.JSONDecodeError):
        if isinstance(found := json.loads(line), dict):
            return found
    return None


class Pairs(Format):
    """Lines of `user item`, in time order, or of `user item time`, with white space between."""

    name = "pairs"
    endings = (".txt",)

    def recognises(self, start: Start) -> bool:
        words = start.line.split()
        return len(words) in (0, 2) or (len(words) == 3 and _TIME.fullmatch(words[2]) is not None)

    def names(self, part: Path) -> list[str]:
        first = first_text(part, "`user item` lines").split()
        if len(first) > 1 and looks_like("user", first[0]) and looks_like("item", first[1]):
            raise UserError(f"{part} starts with a header, '{' '.join(first)}': remove it, or set data.format to tsv")
        return ["user", "item", "time"][: max(2, min(3, len(first)))]

    def table(self, part: Path, wanted: Wanted) -> Table:
        with heard_by(lambda text: None):  # without times its rows are in time order: no notice
            return super().table(part, wanted)

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        names = ["user", "item", "time"][: max(2, min(3, len(line_of(part).split())))]
        pattern = "^" + r"\s+".join([r"(\S+)"] * len(names)) + "$"
        text = pl.col("line").str.strip_chars()
        lines = lines_of(part).with_row_index("number", offset=1).with_columns(text).filter(text != "")
        wrong = lines.filter(~text.str.contains(pattern)).head(1).collect(engine="streaming")
        if len(wrong):
            raise UserError(
                f"{part} line {wrong['number'][0]} is not a `{' '.join(names)}` line: '{wrong['line'][0]}': mend it"
            )
        groups = [pl.col("line").str.extract(pattern, place).alias(name) for place, name in enumerate(names, start=1)]
        return lines.select(groups)
