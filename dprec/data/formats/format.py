"""What a file format is: how its files are recognised, and how they become tables."""

from __future__ import annotations

import gzip
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TextIO, cast

import polars as pl

from dprec.data.formats.condition import Condition
from dprec.data.formats.table import Table, Types, lists_among, not_utf8, one_line, refuse_other_encodings
from dprec.data.formats.wanted import Wanted
from dprec.errors import UserError

_BINARY = {b"PAR1": ("Parquet", ".parquet"), b"ARRO": ("Arrow", ".feather")}  # by their first bytes
_PACKED = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}  # which polars does not read
COMPRESSED = (".gz", ".zst")  # which it does


@dataclass(frozen=True)
class Start:
    """What tells the format of a file: its name, in lower case and without compression, and its first line."""

    path: Path

    @property
    def name(self) -> str:
        return unpacked_name(self.path)

    @property
    def ending(self) -> str:
        return Path(self.name).suffix

    @cached_property
    def line(self) -> str:
        return first_line(self.path)


class Format(ABC):
    """One way to write a log: the names and types of its columns, and a lazy scan of its rows.

    Text is read as text: ids keep their zeros, and `dprec.data.logs.times` parses all times. To add a format, write
    a subclass and enter it in `FORMATS`.
    """

    name: str  # in data.format and in messages
    endings: tuple[str, ...] = ()  # of its files; in a folder, files with these endings are parts of the log
    says_columns_once = True  # in a header or a schema; else each event says its own

    def recognises(self, start: Start) -> bool:
        """Whether a file is of this format. The first format that says so reads it."""
        return start.ending in self.endings

    @abstractmethod
    def names(self, part: Path) -> list[str]:
        """The names of the columns."""

    @abstractmethod
    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        """The rows, lazily, with at least the wanted columns."""

    def types(self, part: Path) -> Types:
        """The types of columns that the file states; they are never guessed from rows, which are people's."""
        return {}

    def broken(self, part: Path, quote: bool) -> int | None:
        """The line, from 1, that is no record; with `quote`, in which a quote begins that does not end."""
        return None

    def table(self, part: Path, wanted: Wanted) -> Table:
        """A file's rows with the wanted columns."""
        with one_line(part):
            names = self.names(part)
        columns = wanted.choose(part, names)
        told = {name: value for name, value in wanted.partition.items() if name not in names}
        where = None
        if wanted.where is not None:
            where = Condition.read(wanted.where, part, [*names, *told], lambda: {**_types(told), **self.types(part)})
        needed = list(dict.fromkeys([*columns.values(), *(where.columns if where else ())]))
        if (twice := next((name for name in needed if names.count(name) > 1), None)) is not None:
            raise UserError(f"{part} has two columns '{twice}': rename one")
        constants = [pl.lit(told[name]).alias(name) for name in needed if name in told]
        with one_line(part):
            rows = self.scan(part, [name for name in needed if name not in told])
            frame = rows.with_columns(constants).select(needed)
            lists = lists_among(frame.collect_schema(), columns, part) if wanted.lists_are_events else []
        return Table(part, frame, columns, where, lists, lambda quote: self.broken(part, quote))


def _types(partition: Mapping[str, str | None]) -> Types:
    """What values from folders are, in a condition."""
    number = re.compile(r"-?\d+(\.\d+)?")
    known = {name: value for name, value in partition.items() if value is not None}
    return {name: pl.Int64() if number.fullmatch(value) else pl.String() for name, value in known.items()}


def unpacked_name(path: Path) -> str:
    """A file's name in lower case, without the ending of its compression."""
    name = path.name.lower()
    return next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)


def refuse_unreadable(part: Path) -> None:
    """Refuse what polars reads as nonsense: other compressions than gzip and Zstandard, and other text than UTF-8."""
    with open(part, "rb") as file:
        start = file.read(5)
    for magic, kind in _PACKED.items():
        if start.startswith(magic):
            raise UserError(f"{part} is packed by {kind}: unpack it, or pack it by gzip or Zstandard")
    refuse_other_encodings(part)


def first_line(path: Path) -> str:
    """The first line that is not blank; "" if there is none."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
        if start in _BINARY:
            kind, ending = _BINARY[start]
            raise UserError(
                f"{path} is {kind} by its first bytes, not text: give it a name that ends in {ending}, or set "
                f"data.format to {ending[1:]}"
            )
        if start == b"\x28\xb5\x2f\xfd":  # Zstandard, which Python cannot read
            return lines_of(path).head(1).collect().item()
        with _unpacked(path) as file:
            lines = (line.decode("utf-8-sig", errors="replace").rstrip("\r\n") for line in file)
            return next((line for line in lines if line.strip()), "")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def first_text(part: Path, least: str) -> str:
    """The first line that is not blank, in UTF-8; `least` is what to give where there is none."""
    line = first_line(part)
    if not line:
        raise UserError(f"{part} is empty: give {least}")
    if "\ufffd" in line:
        raise not_utf8(part)
    return line


def text_of(path: Path) -> TextIO:
    """Open a text, also one that gzip has packed, with its line ends as they are."""
    return TextIOWrapper(_unpacked(path), encoding="utf-8-sig", newline="")


def lines_of(path: Path) -> pl.LazyFrame:
    """A text file's lines as column `line`."""
    lines = pl.scan_csv(path, has_header=False, separator="\n", quote_char=None, infer_schema=False)
    return lines.select(pl.first().alias("line"))


def lines_in(text: str) -> list[str]:
    """Lines as files have them: other characters at which `str.splitlines` cuts may stand in ids and texts.

    >>> lines_in("a\\u2028b\\nc\\n"), lines_in("")
    (['a\\u2028b', 'c'], [])
    """
    return text.removesuffix("\n").split("\n") if text else []


def _unpacked(path: Path) -> IO[bytes]:
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", (gzip.open if packed else open)(path, "rb"))
