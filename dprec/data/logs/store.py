"""The columns of a log, in memory or in a folder of files that is made once and mapped into memory from then on.

A folder has a file for each column, named by its type, such as `items.int32`, tables such as `catalogue.parquet`, and
`meta.json`: what the folder is made from, facts about it, the notices printed about it, and the sizes of its files. It
is written under another name and renamed when it is complete, under a lock. So a killed process leaves nothing that
another would read, and two processes at once make one folder. It holds people's records and is as private as the log.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from dprec.data.logs.parts import ENDING, parts_of
from dprec.errors import UserError
from dprec.notices import kept, say

try:
    import fcntl
except ImportError:  # a platform without POSIX locks
    fcntl = None  # type: ignore[assignment]

META = "meta.json"
LARGE = 2**28  # bytes: a log of this size is always kept in a folder
_MADE_OF, _BYTES = "made_of", "bytes"
_SAMPLE = 2**16  # bytes at each end of a file that are part of its fingerprint
_MOST, _BLOCK = 2**29, 2**20  # the most bytes of an array that are hashed, and bytes of a piece of them


class ColumnStore:
    """Columns of rows that arrive batch by batch, in order.

    Args:
        folder: where a file for each column is written; without one the columns are in memory.
        nameless: the files have no name and disappear when the process ends in any way. If the folder cannot be
            written, they are in the system's folder for temporary files.

    >>> store = ColumnStore()
    >>> store.add(item=np.array([3, 1]), price=np.array([0.5, 2.0]))
    >>> store.add(item=np.array([2]), price=np.array([1.0]))
    >>> store.rows, store.whole()["item"].tolist()
    (3, [3, 1, 2])
    """

    def __init__(self, folder: Path | None = None, nameless: bool = False) -> None:
        self._folder, self._nameless = folder, nameless
        self._held: dict[str, list[np.ndarray]] = {}  # in memory; with a folder only an empty one of each type
        self._files: dict[str, IO[bytes]] = {}
        self.rows = 0

    def add(self, **columns: np.ndarray) -> None:
        for name, column in columns.items():
            if self._folder is None:
                self._held.setdefault(name, []).append(column)
                continue
            self._held.setdefault(name, [column[:0]])
            with _with_room():
                if name not in self._files:
                    self._files[name] = self._opened(self._folder, name, column.dtype)
                self._files[name].write(np.ascontiguousarray(column).data)
        self.rows += len(next(iter(columns.values())))

    def whole(self) -> dict[str, np.ndarray]:
        """Return all rows; no more can be added then."""
        found: dict[str, np.ndarray] = {}
        for name in list(self._held):
            parts = self._held.pop(name)
            if self._folder is None or not self.rows:  # an empty file cannot be mapped
                found[name] = parts[0] if len(parts) == 1 else np.concatenate(parts)
                continue
            with self._files[name] as file, _with_room():
                file.flush()
                shape = (self.rows, *parts[0].shape[1:])
                found[name] = np.memmap(file, dtype=parts[0].dtype, mode="r", shape=shape)
        return found

    def _opened(self, folder: Path, name: str, kind: np.dtype[Any]) -> IO[bytes]:
        if not self._nameless:
            return open(folder / f"{name}.{kind.name}", "w+b")
        try:
            return tempfile.TemporaryFile(dir=folder)
        except OSError:
            return tempfile.TemporaryFile()


def stored(array: np.ndarray, folder: Path | None) -> np.ndarray:
    """Return the array in a nameless file, if there is a folder."""
    store = ColumnStore(folder, nameless=True)
    store.add(array=array)
    return store.whole()["array"]


def forget(*arrays: np.ndarray) -> None:
    """Release this process's memory of mapped arrays; they are read again when needed."""
    for array in arrays:
        if isinstance(array, np.memmap) and array.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
            mapped: Any = array
            mapped._mmap.madvise(mmap.MADV_DONTNEED)


def content_of(*arrays: np.ndarray | None) -> str:
    """Return a hash of the dtypes, shapes and content of arrays, which may be None. It is as private as the data.

    An array of up to 512 MB, such as the items of 130 million events, is read entirely, in half a second. Of a longer
    one, 512 evenly spread pieces of 1 MB are read, with both ends. It finds a change of order or of many records, but
    may miss a change of a single record.

    >>> content_of(np.array([1, 2]), None) == content_of(np.array([1, 2]), None)
    True
    >>> content_of(np.array([1, 2])) == content_of(np.array([2, 1]))
    False
    """
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(b"none" if array is None else f"{array.dtype.str}{array.shape}".encode())
        if array is None or not array.size:
            continue
        rows = max(1, _BLOCK * len(array) // array.nbytes)  # in a piece
        whole = array.nbytes <= _MOST
        starts = np.arange(0, len(array), rows) if whole else np.linspace(0, len(array) - rows, _MOST // _BLOCK)
        for start in starts.astype(np.int64).tolist():
            digest.update(np.ascontiguousarray(array[start : start + rows]).data.cast("B"))
        forget(array)
    return digest.hexdigest()


@dataclass(frozen=True)
class Kept:
    """A folder's content: mapped columns, tables of text, facts, and the notices printed while it was made."""

    columns: Mapping[str, np.ndarray]
    tables: Mapping[str, pl.LazyFrame] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    said: Sequence[str] = ()
    made_of: Mapping[str, Any] = field(default_factory=dict)  # the state of the log, and how it was read
    folder: Path | None = None

    @classmethod
    def opened(cls, folder: Path, state: Mapping[str, Any] | None = None) -> Kept | None:
        """Open a folder that has all its files and, if given, was made from `state`; otherwise return None."""
        try:
            meta = json.loads((folder / META).read_text(encoding="utf-8"))
            if state is not None and meta[_MADE_OF] != state:
                return None
            if any((folder / name).stat().st_size != size for name, size in meta[_BYTES].items()):
                return None
            files, widths = list(map(Path, meta[_BYTES])), meta.get("widths", {})  # older folders have none
            columns = {
                file.stem: np.memmap(folder / file, dtype=file.suffix[1:], mode="r")
                for file in files
                if file.suffix != ".parquet"
            }
            columns |= {name: columns[name].reshape(-1, width) for name, width in widths.items()}
            tables = {file.stem: pl.scan_parquet(folder / file) for file in files if file.suffix == ".parquet"}
            said = list(map(str, meta.get("said", ())))
            return cls(columns, tables, meta["found"], said, meta[_MADE_OF], folder)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, pl.exceptions.PolarsError):
            return None  # missing, or damaged

    def write(self, folder: Path) -> dict[str, Any]:
        """Write files, except columns mapped from one there; return the entries for `meta.json`."""
        for name, column in self.columns.items():
            file = (folder / f"{name}.{column.dtype.name}").absolute()
            if getattr(column, "filename", None) != str(file):
                column.tofile(file)
        for name, table in self.tables.items():
            table.collect().write_parquet(folder / f"{name}.parquet")
        widths = {name: column.shape[1] for name, column in self.columns.items() if column.ndim > 1}
        return {"found": self.facts, "widths": widths}

    def repeated(self, before: str = "") -> Kept:
        """Print again the notices from when the folder was made."""
        for text in self.said:
            say(f"{before}{text}")
        return self


def kept_or_read(
    log: Path,
    version: str | int,
    settings: Mapping[str, Any],
    home: Path,
    read: Callable[[Path], Kept],
    files: Sequence[Path] | None = None,
) -> tuple[Kept, bool]:
    """Return the folder `home` of a log, and whether this call made it by `read`, which gets a folder to work in.

    Args:
        version: of the files; a folder of another version is made again.
        settings: how the log is read, in plain values.
        files: the log's parts, if they are not those that its path names.
    """

    def state() -> dict[str, Any]:
        return {"format": version, **_state_of(log, files or parts_of(log), settings)}

    before = state()
    if (found := Kept.opened(home, before)) is not None:
        return found.repeated(), False
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with _alone(home) as work:
            if (found := Kept.opened(home, before)) is not None:  # made while this process waited
                return found.repeated(), False
            shutil.rmtree(work, ignore_errors=True)  # files of a killed process
            work.mkdir(mode=0o700)  # its files are as private as the source
            try:
                with kept() as said:
                    made = read(work)
                _finish(work, {_MADE_OF: before, **made.write(work), "said": [*said]})
                if state() != before:
                    raise UserError(f"{log} changed while it was prepared: run again when it is complete")
                _swap(work, home)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"cannot write {home} ({error.strerror or error}): set data.cache to a folder with room for "
            "32 bytes an event, or 4 for each value of a record"
        ) from error
    if (found := Kept.opened(home, before)) is None:
        raise UserError(f"{home} changed after it was written: check for another program that uses it, and run again")
    return found, True


def kept_if_large(
    log: Path,
    version: str | int,
    settings: Mapping[str, Any],
    cache: Path | None,
    read: Callable[[Path | None], Kept],
    files: Sequence[Path] | None = None,
) -> Kept:
    """Read a log; it is mapped from a folder if one exists, the log is large or `cache` is given."""
    home = home_of(log, settings, cache)
    if cache is None and not home.exists() and sum(file.stat().st_size for file in files or parts_of(log)) < LARGE:
        return read(None)
    return kept_or_read(log, version, settings, home, read, files)[0]


def home_of(log: Path, settings: Mapping[str, Any], cache: Path | None) -> Path:
    """Return a log's folder: beside it or in `cache`, under a name that depends on the settings."""
    key = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()[:8]
    plain = "".join("_" if mark in "*?[]" else mark for mark in log.name)
    fixed = next(part for part in log.parents if not any(mark in str(part) for mark in "*?["))
    return (fixed if cache is None else cache) / f"{plain}.{key}{ENDING}"


def _state_of(log: Path, files: Sequence[Path], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a folder is made from: the present files, and how they are read."""
    digest, size = hashlib.sha256(), 0
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


def _finish(work: Path, facts: Mapping[str, Any]) -> None:
    files = sorted(work.iterdir())
    meta = {**facts, _BYTES: {file.name: file.stat().st_size for file in files}}
    (work / META).write_text(json.dumps(meta, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for file in (*files, work / META):
        with open(file, "rb+") as written:
            os.fsync(written.fileno())


def _swap(work: Path, home: Path) -> None:
    """Replace the old folder by the new one; processes that mapped the old one keep its files."""
    old = home.with_name(f".{home.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if home.exists():
        home.rename(old)
    work.rename(home)
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _alone(home: Path) -> Iterator[Path]:
    """A folder to work in, with a lock that the system releases when the process ends."""
    if fcntl is None:
        yield home.with_name(f".{home.name}.{os.getpid()}.part")
        return
    lock = home.with_name(f".{home.name}.lock")
    while True:
        with open(lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_at(file, lock):  # another process removed it while this one waited
                continue
            try:
                yield home.with_name(f".{home.name}.part")
            finally:
                lock.unlink(missing_ok=True)
            return


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


@contextmanager
def _with_room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write the histories that training draws from ({error.strerror or error}): they take 4 bytes an "
            "event, 8 with data.context; set data.cache to a folder with room"
        ) from error
