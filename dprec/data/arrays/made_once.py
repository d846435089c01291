"""A folder of files that is made once from something else and mapped from then on: it is whole, or it is not there.

It is written under another name and renamed when it is complete, under a lock, so that a process that is killed leaves
nothing that another one would read, and two processes at once make one folder. `meta.json`, which is written last, says
what the folder is made from, how large its files are, and facts about them.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from dprec.errors import UserError

try:
    import fcntl
except ImportError:  # a platform without POSIX locks
    fcntl = None  # type: ignore[assignment]

META = "meta.json"
MADE_OF, _BYTES = "made_of", "bytes"
T = TypeVar("T")


def facts_of(home: Path, state: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return what `meta.json` says of a folder that has all its files and, if given, is made from `state`.

    None where it is missing, damaged or made from something else.
    """
    try:
        meta = json.loads((home / META).read_text(encoding="utf-8"))
        if state is not None and meta[MADE_OF] != state:
            return None
        if any((home / name).stat().st_size != size for name, size in meta[_BYTES].items()):
            return None
        return dict(meta)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def make_once(
    home: Path,
    source: Path,
    state: Callable[[], Mapping[str, Any]],
    opened: Callable[[Mapping[str, Any]], T | None],
    write: Callable[[Path], Mapping[str, Any]],
    room: str,
) -> tuple[T, bool]:
    """Return what `opened` finds in a folder made from `source`, and whether this call made the folder.

    `state` says what the folder is made from, and `opened` gets that. `write` gets an empty folder, leaves the files
    there and returns facts about them. `room` says how much they take. While another process makes it, this call waits.
    """
    before = state()
    if (found := opened(before)) is not None:
        return found, False
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with _alone(home) as work:
            if (found := opened(before)) is not None:  # made while this process waited
                return found, False
            shutil.rmtree(work, ignore_errors=True)  # files of a killed process
            work.mkdir(mode=0o700)  # its files are as private as the source
            try:
                _finish(work, {MADE_OF: before, **write(work)})
                if state() != before:
                    raise UserError(f"{source} changed while it was prepared: run again when it is complete")
                _swap(work, home)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"cannot write {home} ({error.strerror or error}): {room}; set data.cache to a folder with enough room"
        ) from error
    if (found := opened(before)) is None:
        raise UserError(f"{home} changed after it was written: check for another program that uses it, and run again")
    return found, True


def _finish(work: Path, facts: Mapping[str, Any]) -> None:
    files = sorted(work.iterdir())
    meta = {**facts, _BYTES: {file.name: file.stat().st_size for file in files}}
    (work / META).write_text(json.dumps(meta, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for file in (*files, work / META):
        with open(file, "rb+") as written:
            os.fsync(written.fileno())


def _swap(work: Path, home: Path) -> None:
    """Put the new folder in the place of the old one; processes that mapped the old one keep its files."""
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
