"""What a file format is: how its files are recognised, and how they become tables."""

from __future__ import annotations

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TextIO, cast

from dprec.data.formats.columns import BY_ROW, choose_columns
from dprec.data.formats.table import Table, lines_of
from dprec.errors import UserError

_BINARY = {b"PAR1": ("Parquet", ".parquet"), b"ARRO": ("Arrow", ".feather")}  # by their first bytes
_GLANCE = 2**18  # bytes from which to guess the number of rows of a text


@dataclass(frozen=True)
class Start:
    """What tells the format of a file: its name, in lower case and without compression, and its first line."""

    path: Path
    name: str

    @property
    def ending(self) -> str:
        return Path(self.name).suffix

    @cached_property
    def line(self) -> str:
        return first_line(self.path)


@dataclass
class Wanted:
    """What the user asks of a log: columns by their roles user, item and time, and which rows to use."""

    given: Mapping[str, str | None]
    where: str | None = None
    columns: dict[str, str] = field(default_factory=dict)  # the columns of the first part, and so of all
    lists_are_events: bool = True  # a row's list is as many events; else it is one value
    partition: Mapping[str, str | None] = field(default_factory=dict)  # columns that the part's folders hold, as day=1

    def choose(self, part: Path, names: Sequence[str]) -> dict[str, str]:
        """The columns of a part, which must be those of the parts before it."""
        asked = [name for name in self.partition if name in self.given.values() and name not in names]
        self.columns = self.columns or choose_columns(part, [*names, *asked], self.given)
        for role, name in self.columns.items():
            if name not in names and name not in asked:
                raise UserError(
                    f"{part} has no column '{name}', the {role} in another part: give all parts the same columns"
                )
        return self.columns

    @property
    def by_row(self) -> bool:
        """Whether the rows are in time order, whatever times they have."""
        return self.given["time"] == BY_ROW

    def refuse_columns(self, part: Path, kind: str) -> None:
        """For formats whose columns have no names."""
        if any(name for role, name in self.given.items() if not (role == "time" and self.by_row)):
            raise UserError(f"{part} ({kind}) has no named columns: leave data.user_column and the others out")


class Format(ABC):
    """One way to write a log. A new one is a subclass in a file of this folder, and an entry in `FORMATS`."""

    name: str  # in data.format and in messages
    endings: tuple[str, ...] = ()  # of its files; in a folder, files with these endings are parts of the log
    says_columns_once = True  # in a header or a schema; else each event says its own

    def recognises(self, start: Start) -> bool:
        """Whether a file is of this format. The first format that says so reads it."""
        return start.ending in self.endings

    @abstractmethod
    def table(self, path: Path, part: Path, wanted: Wanted) -> Table:
        """A file's rows; messages name it `part`, the path that the user gave."""

    def rows(self, path: Path) -> int:
        """About how many rows a file has, for a progress bar. For text it is a guess from the first lines."""
        with open(path, "rb") as file:
            start = file.read(_GLANCE)
        text = zlib.decompressobj(wbits=31).decompress(start) if start.startswith(b"\x1f\x8b") else start
        return path.stat().st_size * text.count(b"\n") // max(1, len(start))


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


def text_of(path: Path) -> TextIO:
    """Open a text, also one that gzip has packed, with its line ends as they are."""
    return TextIOWrapper(_unpacked(path), encoding="utf-8-sig", newline="")


def _unpacked(path: Path) -> IO[bytes]:
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", (gzip.open if packed else open)(path, "rb"))
