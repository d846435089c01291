"""Text with a header line and a mark between columns: CSV, TSV, and RecBole's `.inter`, whose header has types."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import polars as pl

from dprec.data.formats.columns import plain
from dprec.data.formats.format import Start, first_line
from dprec.data.formats.named import NamedFormat, Types, first_text
from dprec.errors import UserError


class CSV(NamedFormat):
    name = "csv"
    endings: tuple[str, ...] = (".csv",)
    marks: ClassVar[str] = ",;\t|"  # the one that makes most columns of the header; the first of equals

    def names(self, path: Path, part: Path) -> list[str]:
        return self._header(first_text(path, part, "a header line and at least one event"))[1]

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return pl.scan_csv(path, separator=self._header(first_line(path))[0], infer_schema=False)

    def _header(self, line: str) -> tuple[str, list[str]]:
        cells = {mark: next(csv.reader([line], delimiter=mark)) for mark in self.marks}
        return max(cells.items(), key=lambda pair: len(pair[1]))


class TSV(CSV):
    name = "tsv"
    endings: tuple[str, ...] = (".tsv",)
    marks = "\t"


class Unheaded(CSV):
    """Text whose columns are named by their places; a first line with these names is left out.

    `::` may stand between the columns, as in MovieLens's files.
    """

    endings = ()

    def __init__(self, header: Sequence[str]) -> None:
        self.header = list(header)

    def names(self, path: Path, part: Path) -> list[str]:
        cells = self._header(first_text(path, part, "at least one record"))[1]
        if len(cells) != len(self.header):
            raise UserError(
                f"{part} has {len(cells)} columns, and data.header names {len(self.header)}: give a name for each"
            )
        return self.header

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return self._read(path)

    def _read(self, path: Path) -> pl.LazyFrame:
        mark, cells = self._header(first_line(path))
        named = [plain(name) for name in cells] == [plain(name) for name in self.header]
        columns = self.header
        if mark == ":":  # between two of them there is an empty column
            columns = [name for place, each in enumerate(columns) for name in (each, f"::{place}")][:-1]
        return pl.scan_csv(
            path, separator=mark, has_header=False, new_columns=columns, skip_rows=int(named), infer_schema=False
        ).select(self.header)

    def _header(self, line: str) -> tuple[str, list[str]]:
        return (":", line.split("::")) if "::" in line else super()._header(line)


class GLUE(TSV):
    """GLUE's files: tabs between columns, quotes are part of the text. Only `data.format` asks for it."""

    name = "glue"
    endings = ()

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return pl.scan_csv(path, separator="\t", quote_char=None, infer_schema=False)

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
