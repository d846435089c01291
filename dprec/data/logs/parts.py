"""The files of a log: one file, a folder's parts, or those of a pattern with `*`; and where it is kept prepared."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dprec.data.formats import ENDINGS
from dprec.data.formats.compression import readable, unpacked_name
from dprec.data.formats.format import Format, Wanted
from dprec.data.formats.table import Table
from dprec.errors import UserError

ENDING = ".dprec"  # of folders that hold a prepared log
LARGE = 2**28  # bytes: a log of this size is always prepared
_SAMPLE = 2**16  # bytes at each end of a file that are part of its fingerprint
_NULL = "__HIVE_DEFAULT_PARTITION__"


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


def partition_of(log: Path, part: Path) -> dict[str, str | None]:
    """The columns that the names of a part's folders hold, as Hive, Spark and DuckDB write them.

    >>> partition_of(Path("log"), Path("log/day=2020-01-02/shop=a%2Fb/part-0.parquet"))
    {'day': '2020-01-02', 'shop': 'a/b'}
    """
    first = len(log.parts) if log != part else len(part.parts)
    if (pattern := _pattern(log)) is not None and log != part:
        first = pattern
    pairs = [name.partition("=") for name in part.parts[first:-1] if "=" in name]
    return {unquote(key): None if value == _NULL else unquote(value) for key, _, value in pairs}


def tables_of(log: Path, wanted: Wanted, format: Callable[[Path, Path], Format], scratch: Path) -> Iterator[Table]:
    """Yield the table of each part; `format` is asked with a readable file and the part that it is from.

    What a part is unpacked to is in `scratch`, until its table has been read.
    """
    for part in parts_of(log):
        wanted.partition = partition_of(log, part)
        file = readable(part, scratch)
        yield format(file, part).table(file, part, wanted)
        if file != part:
            file.unlink()


def state_of(log: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a prepared folder is made from: the present files, and how they are read."""
    digest, size = hashlib.sha256(), 0
    files = parts_of(log)
    for file in files:
        stat = file.stat()
        name = file.relative_to(log) if log.is_dir() else file.name
        digest.update(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        with open(file, "rb") as content:
            digest.update(content.read(_SAMPLE))
            content.seek(max(0, stat.st_size - _SAMPLE))
            digest.update(content.read(_SAMPLE))
        size += stat.st_size
    return {"files": len(files), "bytes": size, "fingerprint": digest.hexdigest(), "settings": dict(settings)}


def size_of(log: Path) -> int:
    return sum(file.stat().st_size for file in parts_of(log))


def is_kept(log: Path, home: Path, cache: Path | None) -> bool:
    """Whether a log is read from a prepared folder: if one exists, the log is large or `cache` is given."""
    return cache is not None or home.exists() or size_of(log) >= LARGE


def home_of(log: Path, settings: Mapping[str, Any], cache: Path | None) -> Path:
    """Where a log is prepared: beside it or in `cache`, under a name that depends on the settings."""
    key = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()[:8]
    plain = "".join("_" if mark in "*?[]" else mark for mark in log.name)
    fixed = next(part for part in log.parents if not any(mark in str(part) for mark in "*?["))
    return (fixed if cache is None else cache) / f"{plain}.{key}{ENDING}"


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
