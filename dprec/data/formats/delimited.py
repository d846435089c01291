"""Text with a header line and a mark between columns: CSV, TSV, and RecBole's `.inter`, whose header has types."""

from __future__ import annotations

import csv
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import polars as pl

from dprec.data.formats.columns import plain
from dprec.data.formats.format import Start, Wanted, first_line, text_of
from dprec.data.formats.named import NamedFormat, Types, first_text
from dprec.data.formats.table import Table
from dprec.errors import UserError

_MARKS = {".dat": "::", ".tsv": "\t", ".data": "\t"}  # by the endings of text without a header


def _whole(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Return rows whose fields are all read, since polars looks for lines with too many only then."""
    return rows.map_batches(lambda batch: batch, projection_pushdown=False, streamable=True)


class CSV(NamedFormat):
    name = "csv"
    endings: tuple[str, ...] = (".csv",)
    marks: ClassVar[str] = ",;\t|"  # the one that makes most columns of the header; the first of equals

    def names(self, path: Path, part: Path) -> list[str]:
        return self._header(first_text(path, part, "a header line and at least one event"))[1]

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return _whole(pl.scan_csv(path, separator=self._header(first_line(path))[0], infer_schema=False))

    def table(self, path: Path, part: Path, wanted: Wanted) -> Table:
        found = super().table(path, part, wanted)
        found.broken = lambda quote: self._broken(path, quote)
        return found

    def _broken(self, path: Path, quote: bool) -> int | None:
        """Return in which line the first record begins that has too many fields, or else a quote that does not end."""
        mark, names = self._header(first_line(path))
        begins = 1
        try:
            with text_of(path) as file:
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
        cells = {mark: next(csv.reader([line], delimiter=mark)) for mark in self.marks}
        return max(cells.items(), key=lambda pair: len(pair[1]))


class TSV(CSV):
    name = "tsv"
    endings: tuple[str, ...] = (".tsv",)
    marks = "\t"


class Unheaded(CSV):
    """Text whose columns are named by their places; a first line with these names is left out.

    What stands between columns follows from the file's name, never from a record: `::` in .dat, as MovieLens has it, a
    tab in .tsv and .data, a comma in others.
    """

    endings = ()

    def __init__(self, header: Sequence[str], file: str) -> None:
        self.header = list(header)
        self.mark = next((mark for ending, mark in _MARKS.items() if ending in Path(file.lower()).suffixes), ",")

    def names(self, path: Path, part: Path) -> list[str]:
        cells = self._cells(first_text(path, part, "at least one record"))
        if len(cells) != len(self.header):
            raise UserError(
                f"{part} has {len(cells)} columns with '{self.mark}' between them, and data.header names "
                f"{len(self.header)}: give a name for each; '::' is for names that end in .dat, tabs for .tsv and .data"
            )
        return self.header

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return self._read(path)

    def _broken(self, path: Path, quote: bool) -> int | None:
        return None

    def _read(self, path: Path) -> pl.LazyFrame:
        named = [plain(name) for name in self._cells(first_line(path))] == [plain(name) for name in self.header]
        columns = self.header
        if self.mark == "::":  # between two of them there is an empty column
            columns = [name for place, each in enumerate(columns) for name in (each, f"::{place}")][:-1]
        rows = pl.scan_csv(
            path,
            separator=self.mark[0],
            has_header=False,
            new_columns=columns,
            skip_rows=int(named),
            infer_schema=False,
        )
        return _whole(rows).select(self.header)

    def _cells(self, line: str) -> list[str]:
        return line.split("::") if self.mark == "::" else next(csv.reader([line], delimiter=self.mark))


class GLUE(TSV):
    """GLUE's files: tabs between columns, quotes are part of the text. Only `data.format` asks for it."""

    name = "glue"
    endings = ()

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return _whole(pl.scan_csv(path, separator="\t", quote_char=None, infer_schema=False))

    def _broken(self, path: Path, quote: bool) -> int | None:
        return None

    def _header(self, line: str) -> tuple[str, list[str]]:
        return "\t", line.split("\t")


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

    def names(self, path: Path, part: Path) -> list[str]:
        return [self._plain(name) for name in super().names(path, part)]

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return super().scan(path, wanted).rename(self._plain)

    def types(self, path: Path) -> Types:
        names = self._header(first_line(path))[1]
        return {self._plain(name): self._TYPES[self._type(name)] for name in names if self._type(name)}

    def _type(self, name: str) -> str:
        kind = name.rpartition(":")[2]
        return kind if ":" in name and kind in self._TYPES else ""

    def _plain(self, name: str) -> str:
        return name.rpartition(":")[0] if self._type(name) else name
