"""The files of a log: one file, a folder's parts, or those of a pattern with `*`; unpacked if polars cannot."""

from __future__ import annotations

import bz2
import lzma
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from dprec.errors import UserError

ENDINGS = (
    *(".parquet", ".pq", ".feather", ".arrow", ".ipc", ".csv", ".tsv", ".inter", ".jsonl", ".ndjson", ".json"),
    *(".txt", ".dat", ".data"),
)
ENDING = ".dprec"  # of folders that hold a prepared log
PACKED = (".gz", ".zst", ".bz2", ".xz", ".zip")
_OPENERS: dict[bytes, Callable[[Path], IO[Any]]] = {b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
_WIDE = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def unpacked_name(path: Path) -> str:
    """A file's name in lower case, without the ending of its compression."""
    name = path.name.lower()
    return next((name.removesuffix(ending) for ending in PACKED if name.endswith(ending)), name)


def holds_parts(path: Path) -> bool:
    """Whether a path names a log: a file, a folder with parts, or a pattern that matches a file."""
    if path.is_dir():
        return bool(_inside(path))
    return path.is_file() or bool(_matching(path))


def parts_of(path: Path) -> list[Path]:
    """A log's files in the order of their names. In a folder, those that hold data, in sub-folders too.

    Files whose names start with `_` or `.` are not parts: programs that write parts leave them. An empty file is an
    empty part.
    """
    if path.is_file():
        return [path]
    if path.is_dir():
        found, wanted = _inside(path), f"the folder {path} holds no parts of a log ({', '.join(ENDINGS[:9])}, ...)"
    elif _pattern(path) is not None:
        found, wanted = _matching(path), f"no file matches {path}"
    else:
        raise UserError(f"there is no file {path}: put the interaction log there or set data.path")
    if not found:
        raise UserError(f"{wanted}: set data.path to the log")
    kinds = sorted({Path(unpacked_name(file)).suffix for file in found})
    if len(kinds) > 1:
        raise UserError(f"{path} has {' and '.join(kinds)} files: set data.path to one kind, such as *{kinds[0]}")
    return [file for file in sorted(found) if file.stat().st_size] or found[:1]


def _inside(folder: Path) -> list[Path]:
    # Only names below the folder count: the folder itself may be in `.cache`.
    files = [(file, file.relative_to(folder).parts) for file in folder.rglob("*") if file.is_file()]
    shown = [file for file, names in files if not any(name[0] in "_." or name.endswith(ENDING) for name in names)]
    return [file for file in shown if unpacked_name(file).endswith(ENDINGS)]


def _matching(path: Path) -> list[Path]:
    first = _pattern(path)
    if first is None:
        return []
    fixed = Path(*path.parts[:first])
    return [file for file in fixed.glob(str(path.relative_to(fixed))) if file.is_file()]


def _pattern(path: Path) -> int | None:
    """The first part of a path that is a pattern."""
    return next((number for number, part in enumerate(path.parts) if re.search(r"[*?\[]", part)), None)


def readable(part: Path, scratch: Path) -> Path:
    """The part itself, or its text in a file in `scratch` if polars cannot read its compression or encoding."""
    try:
        with open(part, "rb") as file:
            start = file.read(6)
        for magic, opener in _OPENERS.items():
            if start.startswith(magic):
                with opener(part) as packed:
                    return _copied(packed, part, scratch)
        if start.startswith(b"PK\x03\x04"):
            with zipfile.ZipFile(part) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX" not in name]
                if len(names) != 1:
                    raise UserError(f"{part} holds {len(names)} files: unpack it and set data.path to the log")
                with archive.open(names[0]) as packed:
                    return _copied(packed, part, scratch, names[0])
        encoding = next((name for mark, name in _WIDE.items() if start.startswith(mark)), None)
        if encoding is not None:
            target = scratch / part.name
            with (
                open(part, encoding=encoding, newline="") as file,
                open(target, "w", encoding="utf-8", newline="") as new,
            ):
                shutil.copyfileobj(file, new)
            return target
    except (OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile, zlib.error, UnicodeError) as error:
        raise UserError(f"cannot read {part}: {error}") from error
    return part


def _copied(packed: IO[Any], part: Path, scratch: Path, name: str | None = None) -> Path:
    target = scratch / Path(name or unpacked_name(part)).name
    with open(target, "wb") as file:
        shutil.copyfileobj(packed, file, 2**20)
    return target
