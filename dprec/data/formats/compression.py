"""Compressed files and UTF-16 text: polars reads gzip and Zstandard itself, the others are unpacked first."""

from __future__ import annotations

import bz2
import lzma
import shutil
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dprec.errors import UserError


@dataclass(frozen=True)
class Compression:
    """How a compressed file is recognised, and who opens it; None if polars does."""

    ending: str
    magic: bytes
    opens: Callable[[Path], IO[Any]] | None = None


COMPRESSIONS = (
    Compression(".gz", b"\x1f\x8b"),
    Compression(".zst", b"\x28\xb5\x2f\xfd"),
    Compression(".bz2", b"BZh", bz2.open),
    Compression(".xz", b"\xfd7zXZ", lzma.open),
    Compression(".zip", b"PK\x03\x04", lambda path: _only_file(path)),
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def unpacked_name(path: Path) -> str:
    """A file's name in lower case, without the ending of its compression."""
    name = path.name.lower()
    return next((name.removesuffix(each.ending) for each in COMPRESSIONS if name.endswith(each.ending)), name)


def readable(part: Path, scratch: Path) -> Path:
    """The part itself, or its text in a file in `scratch` if polars cannot read its compression or encoding."""
    try:
        with open(part, "rb") as file:
            start = file.read(6)
        for each in COMPRESSIONS:
            if each.opens is not None and start.startswith(each.magic):
                with each.opens(part) as packed:
                    return _copied(packed, scratch / unpacked_name(Path(getattr(packed, "name", None) or part)))
        if start.startswith(_UTF16):
            target = scratch / part.name
            with (
                open(part, encoding="utf-16", newline="") as text,
                open(target, "w", encoding="utf-8", newline="") as new,
            ):
                shutil.copyfileobj(text, new)
            return target
    except (OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile, zlib.error, UnicodeError) as error:
        raise UserError(f"cannot read {part}: {error}") from error
    return part


def _only_file(path: Path) -> IO[Any]:
    archive = zipfile.ZipFile(path)
    names = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX" not in name]
    if len(names) != 1:
        raise UserError(f"{path} holds {len(names)} files: unpack it and set data.path to the log")
    return archive.open(names[0])


def _copied(packed: IO[Any], target: Path) -> Path:
    with open(target, "wb") as file:
        shutil.copyfileobj(packed, file, 2**20)
    return target
