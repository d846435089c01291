"""Criteo's click logs: a line has clicked or not, 13 counts and 26 values of 8 hexadecimal digits, with tabs between.

They are read in pieces, so memory does not grow with the log. Empty fields are missing values.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dprec.data.click_logs.log import FEATURES, NUMBERS, WIDTH, ClickBlock
from dprec.errors import UserError

PIECE = 2**20  # bytes read at a time: their records stay in the cache
_FIELDS = 1 + WIDTH
_DIGITS = 10  # of the largest 32-bit number
_TAB, _LINE, _MINUS, _ZERO = b"\t\n-0"
_NIBBLE = np.full(256, 255, dtype=np.uint8)
_NOT_NIBBLES = np.uint64(0xF0F0F0F0F0F0F0F0)  # the bits that no eight nibbles have
for _value, _digit in enumerate("0123456789abcdef"):
    _NIBBLE[[ord(_digit), ord(_digit.upper())]] = _value


def read_criteo(path: Path, piece: int = PIECE) -> Iterator[ClickBlock]:
    """The records of a log, plain or gzipped, in its order, in blocks of about `piece` bytes of text."""
    line, rest = 1, b""
    try:
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else open(path, "rb") as file:
            while text := file.read(piece):
                end = text.rfind(b"\n") + 1
                lines, rest = (rest + text[:end], text[end:]) if end else (b"", rest + text)
                if len(rest) > 2**20:
                    raise UserError(
                        f"{path} line {line} is longer than 1 MiB, so it is not a Criteo log: set data.path to one"
                    )
                if lines:
                    block = parse(lines, path, line)
                    line += len(block)
                    yield block
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if rest.strip():
        yield parse(rest + b"\n", path, line)


def parse(text: bytes, path: Path, line: int = 1) -> ClickBlock:
    """The records of whole lines; the first is line number `line` of `path`."""
    text = text.replace(b"\r\n", b"\n")
    padded = np.frombuffer(bytes(_DIGITS) + text + bytes(_DIGITS), dtype=np.uint8)
    marks = np.flatnonzero((padded == _TAB) | (padded == _LINE))
    if len(marks) % _FIELDS or ((padded[marks] == _LINE) != (np.arange(len(marks)) % _FIELDS == WIDTH)).any():
        raise _wrong_width(text, path, line)
    starts = np.concatenate([[_DIGITS], marks[:-1] + 1]).reshape(-1, _FIELDS)  # (n, 40)
    ends = marks.reshape(-1, _FIELDS)
    label = padded[starts[:, 0]] - np.uint8(_ZERO)
    columns = slice(1, 1 + NUMBERS), slice(1 + NUMBERS, _FIELDS)
    counts, counted = _whole_numbers(padded, starts[:, columns[0]], ends[:, columns[0]])
    hashes, hashed = _hashes(padded, starts[:, columns[1]], ends[:, columns[1]])
    right = np.column_stack([(label <= 1) & (ends[:, 0] - starts[:, 0] == 1), counted, hashed])  # (n, 40)
    if not right.all():
        row, column = divmod(int(np.argmin(right)), _FIELDS)
        value = padded[starts[row, column] : ends[row, column]].tobytes()
        raise _wrong_value(value, column, path, line + row)
    return ClickBlock(np.concatenate([counts, hashes.view(np.int32)], axis=1), label)


def _whole_numbers(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 32-bit numbers between starts and ends, 0 for an empty field; and which fields are a number or empty."""
    lengths = ends - starts
    negative = (text[starts] == _MINUS) & (lengths > 1)
    digits = lengths - negative
    numbers = np.zeros(starts.shape, dtype=np.int64)
    right = digits <= _DIGITS
    for place in range(min(_DIGITS, int(digits.max(initial=0)))):
        digit = text[ends - 1 - place] - np.uint8(_ZERO)
        inside = digits > place
        right &= (digit <= 9) | ~inside
        numbers += np.where(inside, digit, 0) * np.int64(10**place)
    numbers = np.where(negative, -numbers, numbers)
    right &= numbers == numbers.astype(np.int32)
    return numbers.astype(np.int32), right


def _hashes(text: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A hash in 1..2^32 - 1 of every value, 0 for an empty field; and which fields are 8 digits or empty."""
    nibbles = _NIBBLE[sliding_window_view(text, 8)[starts]]  # (n, 26, 8)
    lengths = ends - starts
    missing = lengths == 0
    right = missing | ((lengths == 8) & (nibbles.view(np.uint64)[..., 0] & _NOT_NIBBLES == 0))
    values = (nibbles[..., ::2] << 4 | nibbles[..., 1::2]).view(">u4")[..., 0].astype(np.uint32)
    return np.where(missing, np.uint32(0), np.maximum(_mixed(values), 1)), right


def _mixed(values: np.ndarray) -> np.ndarray:
    """MurmurHash3's last step, one to one on 32 bits: neighbouring values spread over any number of buckets."""
    values = (values ^ (values >> 16)) * np.uint32(0x85EBCA6B)
    values = (values ^ (values >> 13)) * np.uint32(0xC2B2AE35)
    return values ^ (values >> 16)


def _wrong_width(text: bytes, path: Path, line: int) -> UserError:
    widths = enumerate((one.count(b"\t") + 1 for one in text.split(b"\n")), start=line)
    number, width = next((number, width) for number, width in widths if width != _FIELDS)
    hint = " (a test file without labels?)" if width == WIDTH else ""
    return UserError(
        f"{path} line {number} has {width} fields{hint}: a Criteo log has {_FIELDS}, separated by tabs: "
        f"clicked or not, {NUMBERS} counts, {FEATURES} values; mend or remove the line"
    )


def _wrong_value(value: bytes, column: int, path: Path, line: int) -> UserError:
    wanted = "8 hexadecimal digits or nothing"
    if column <= NUMBERS:
        wanted = "a whole number of 32 bits or nothing" if column else "0 or 1"
    shown = value[:40].decode(errors="replace")
    return UserError(f"{path} line {line} field {column + 1} is '{shown}': want {wanted}; mend or remove the line")


def _kaggle(path: Path) -> list[Path]:
    """The only file of the Kaggle release: train.txt."""
    if path.is_file():
        return [path]
    return [file for file in (path / "train.txt", path / "train.txt.gz") if file.is_file()][:1]


def _days(folder: Path) -> list[Path]:
    """day_0, day_1, ... in the order of their numbers, each plain or gzipped."""
    if not folder.is_dir():
        return []
    found: dict[int, Path] = {}
    for file in sorted(folder.iterdir()):  # the plain file comes before the gzipped one
        if (match := re.fullmatch(r"day_(\d+)(\.gz)?", file.name)) and file.is_file():
            found.setdefault(int(match[1]), file)
    gap = next((day for day in range(min(found, default=0), max(found, default=0)) if day not in found), None)
    if gap is not None:
        raise UserError(f"{folder} has days before and after day_{gap}, but not that one: add it or remove the earlier")
    return [found[day] for day in sorted(found)]


LOCATE: dict[str, Callable[[Path], list[Path]]] = {"criteo-kaggle": _kaggle, "criteo-days": _days}
FILES = {"criteo-kaggle": "train.txt or train.txt.gz", "criteo-days": "day_0, day_1, ... or day_0.gz, ..."}
