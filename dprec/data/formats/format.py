"""The base of file formats: how files are recognised and become tables, which are read a batch of rows at a time."""

from __future__ import annotations

import gzip
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TextIO, TypeAlias, cast

import polars as pl

from dprec.data.formats.wanted import Condition, Wanted
from dprec.errors import UserError, first_line

_PACKED = {b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}  # which polars does not read
COMPRESSED = (".gz", ".zst")  # which it does


@dataclass(frozen=True)
class Start:
    """Hints to a file's format: its name, in lower case and without compression, its first bytes and line."""

    path: Path

    @cached_property
    def magic(self) -> bytes:
        with open(self.path, "rb") as file:
            return file.read(4)

    @property
    def name(self) -> str:
        return unpacked_name(self.path)

    @property
    def ending(self) -> str:
        return Path(self.name).suffix

    @cached_property
    def line(self) -> str:
        return line_of(self.path)


class Format(ABC):
    """One way to write a log: the names and types of its columns, and a lazy scan of its rows.

    Text is read as text: ids keep their zeros, and `dprec.data.logs.times` parses all times. To add a format, write
    a subclass and enter it in `FORMATS`.
    """

    name: str  # in data.format and in messages
    endings: tuple[str, ...] = ()  # of its files; in a folder, files with these endings are parts of the log
    says_columns_once = True  # in a header or a schema; otherwise each event names its own

    def recognises(self, start: Start) -> bool:
        """Whether a file has this format. The first format that returns True reads it."""
        return start.ending in self.endings

    @abstractmethod
    def names(self, part: Path) -> list[str]:
        """The names of the columns."""

    @abstractmethod
    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        """The rows, lazily, with at least the wanted columns."""

    def types(self, part: Path) -> Types:
        """The types of columns that the file states; they are never guessed from people's rows."""
        return {}

    def broken(self, part: Path, quote: bool) -> int | None:
        """Return the line, from 1, that is no record; with `quote`, the line with an unclosed quote."""
        return None

    def table(self, part: Path, wanted: Wanted) -> Table:
        """A file's rows with the wanted columns."""
        with one_line(part):
            names = self.names(part)
        columns = wanted.choose(part, names)
        where = None
        if wanted.where is not None:
            where = Condition.read(wanted.where, part, names, lambda: self.types(part))
        needed = list(dict.fromkeys([*columns.values(), *(where.columns if where else ())]))
        if (twice := next((name for name in needed if names.count(name) > 1), None)) is not None:
            raise UserError(f"{part} has two columns '{twice}': rename one")
        with one_line(part):
            frame = self.scan(part, needed).select(needed)
        return Table(part, frame, columns, where, lambda quote: self.broken(part, quote))


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


def line_of(path: Path) -> str:
    """The first line that is not blank; "" if there is none."""
    try:
        with open(path, "rb") as file:
            start = file.read(4)
        if start == b"\x28\xb5\x2f\xfd":  # Zstandard, which Python cannot read
            return lines_of(path).head(1).collect().item()
        with _unpacked(path) as file:
            lines = (line.decode("utf-8-sig", errors="replace").rstrip("\r\n") for line in file)
            return next((line for line in lines if line.strip()), "")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def first_text(part: Path, least: str) -> str:
    """Return the first line that is not blank, in UTF-8; if there is none, the error asks for `least`."""
    line = line_of(part)
    if not line:
        raise UserError(f"{part} is empty: give {least}")
    if "\ufffd" in line:
        raise not_utf8(part)
    return line


def text_of(path: Path) -> TextIO:
    """Open a text, also if gzip has packed it, without changing its line ends."""
    return TextIOWrapper(_unpacked(path), encoding="utf-8-sig", newline="")


def lines_of(path: Path) -> pl.LazyFrame:
    """A text file's lines as column `line`."""
    lines = pl.scan_csv(path, has_header=False, separator="\n", quote_char=None, infer_schema=False)
    return lines.select(pl.first().alias("line"))


def lines_of_list(path: Path, what: str) -> list[str]:
    """The lines of a public list; `what` is its name in messages."""
    try:
        return lines_in(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"cannot read {what} {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {path} is not UTF-8 text: give one value a line") from error


def lines_in(text: str) -> list[str]:
    """Split only at newlines: ids and texts may contain other characters at which `str.splitlines` cuts.

    >>> lines_in("a\\u2028b\\nc\\n"), lines_in("")
    (['a\\u2028b', 'c'], [])
    """
    return text.removesuffix("\n").split("\n") if text else []


def _unpacked(path: Path) -> IO[bytes]:
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast("IO[bytes]", (gzip.open if packed else open)(path, "rb"))


ROWS, _CELLS = 2**20, 2**22  # in a batch, at most
THE_ROWS = "the order of the rows"
_NUMBER = "\0row"  # column of row numbers; a log may have a column `row`
# Finds the line, from 1, of a record with an unclosed quote, or otherwise of one that the format does not allow.
Broken: TypeAlias = "Callable[[bool], int | None]"
Types: TypeAlias = Mapping[str, pl.DataType]


@dataclass
class Table:
    """A part of a log whose rows are read on demand.

    Args:
        part: the path that the user gave, for messages.
        frame: the rows, lazily, with the columns that are needed.
        columns: the column of each role; a batch names its columns by their roles.
        where: the condition that rows must meet.
        broken: finds the line to name if polars only reports that the file is broken.
    """

    part: Path
    frame: pl.LazyFrame
    columns: Mapping[str, str]
    where: Condition | None = None
    broken: Broken = lambda quote: None
    left_out: int = 0  # rows so far for which `where` does not hold

    @property
    def time(self) -> str:
        """What determines the order in time, in words."""
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
                    yield rows.select(roles)


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
    """Refuse UTF-16, as spreadsheets write it: its bytes would be read as names of columns."""
    with open(path, "rb") as file:
        if file.read(2) in (b"\xff\xfe", b"\xfe\xff"):
            raise not_utf8(path, "utf-16")
