"""A log's events in a folder, made once and then mapped into memory: opening takes no time for any size.

    items.int32        the item of every event, as its place in the catalogue: user after user, each in time order
    context.int32      what is known of every event beside its item; missing if data.context names no columns
    ages.uint32        how many seconds before the last event of the log each one was; missing if times have no unit
    offsets.int64      user u's events are offsets[u] to offsets[u + 1]
    catalogue.parquet  item_id and users (how many saw it), in the order of the places
    users.parquet      user_id, in the order of the users
    meta.json          the state of the log, facts about it, what was said of it, and sizes of the files; written last

The folder holds people's histories and is as private as the log.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import polars as pl

from dprec.data.logs.context import ContextColumns
from dprec.data.logs.event_parts import EventContext
from dprec.data.logs.histories import Interactions
from dprec.data.logs.parts import ENDING, parts_of
from dprec.errors import UserError
from dprec.notices import kept, say

try:
    import fcntl
except ImportError:  # a platform without POSIX locks
    fcntl = None  # type: ignore[assignment]

FORMAT = 3  # raise it when the content of the files changes
META = "meta.json"
_ITEMS, _AGES, _CONTEXT, _OFFSETS = "items.int32", "ages.uint32", "context.int32", "offsets.int64"
_CATALOGUE, _USERS = "catalogue.parquet", "users.parquet"
_SAMPLE = 2**16  # bytes at each end of a file that are part of its fingerprint


def is_prepared(path: Path) -> bool:
    return (path / META).is_file()


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
    return {
        "format": FORMAT,
        "files": len(files),
        "bytes": size,
        "fingerprint": digest.hexdigest(),
        "settings": dict(settings),
    }


def size_of(log: Path) -> int:
    return sum(file.stat().st_size for file in parts_of(log))


def home_of(log: Path, settings: Mapping[str, Any], cache: Path | None) -> Path:
    """Where a log is prepared: beside it or in `cache`, under a name that depends on the settings."""
    key = hashlib.sha256(json.dumps(dict(settings), sort_keys=True).encode()).hexdigest()[:8]
    plain = "".join("_" if mark in "*?[]" else mark for mark in log.name)
    fixed = next(part for part in log.parents if not any(mark in str(part) for mark in "*?["))
    return (fixed if cache is None else cache) / f"{plain}.{key}{ENDING}"


def prepare(
    log: Path, settings: Mapping[str, Any], home: Path, read: Callable[[Path], Interactions]
) -> tuple[Interactions, bool]:
    """The events of a log from `home`, and whether this call made them by `read`, which gets a folder to work in.

    The folder is written under another name and renamed when it is complete, so a reader never finds a part of it. If
    another process is preparing it, this call waits.
    """
    state = state_of(log, settings)
    if (events := _opened(home, state)) is not None:
        return _repeated(events), False
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with _alone(home) as work:
            if (events := _opened(home, state)) is not None:  # made while this process waited
                return _repeated(events), False
            shutil.rmtree(work, ignore_errors=True)  # files of a killed process
            work.mkdir(mode=0o700)  # its files are as private as the log
            try:
                with kept() as said:
                    events = read(work)
                _write(replace(events, said=said), work, state)
                if state_of(log, settings) != state:
                    raise UserError(f"{log} changed while it was prepared: run again when it is complete")
                _swap(work, home)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"cannot write {home} ({error.strerror or error}): preparing a log takes about 32 bytes an event; "
            "set data.cache to a folder with enough room"
        ) from error
    events = _opened(home, state)
    if events is None:
        raise UserError(f"{home} changed after it was written: check for another program that uses it, and run again")
    return events, True


def settings_of(home: Path) -> dict[str, Any]:
    """How the log of a prepared folder was read, by the names of `HowToRead`."""
    return dict(json.loads((home / META).read_text(encoding="utf-8"))["made_of"]["settings"])


def open_prepared(home: Path) -> Interactions:
    """The events of a prepared folder, which does not need the log; says what preparing it said."""
    events = _opened(home, None)
    if events is None:
        raise UserError(f"{home} is incomplete or of another version: prepare the log again")
    return _repeated(events, f"{home}, as it was prepared: ")


def _repeated(events: Interactions, before: str = "") -> Interactions:
    """Say again what was said when the events were prepared."""
    for text in events.said:
        say(f"{before}{text}")
    return events


def _opened(home: Path, state: Mapping[str, Any] | None) -> Interactions | None:
    try:
        meta = json.loads((home / META).read_text(encoding="utf-8"))
        if meta["made_of"]["format"] != FORMAT or (state is not None and meta["made_of"] != state):
            return None
        if any((home / name).stat().st_size != size for name, size in meta["bytes"].items()):
            return None
        offsets = np.memmap(home / _OFFSETS, dtype=np.int64, mode="r")
        catalogue = pl.read_parquet(home / _CATALOGUE)
        users = pl.scan_parquet(home / _USERS)
        shape = (int(offsets[-1]),)
        item = np.memmap(home / _ITEMS, dtype=np.int32, mode="r", shape=shape)
        ages, codes = (
            np.memmap(home / name, dtype=kind, mode="r", shape=shape) if name in meta["bytes"] else None
            for name, kind in ((_AGES, np.uint32), (_CONTEXT, np.int32))
        )
        named = meta["made_of"]["settings"].get("context")
        return Interactions(
            offsets,
            item,
            catalogue["item_id"].to_list(),
            read_user_ids=lambda: users.collect()["user_id"],
            item_users=catalogue["users"].to_numpy(),
            facts=meta["found"],
            ages=ages,
            context=None if codes is None else EventContext(ContextColumns.of(named), codes),
            said=[str(text) for text in meta.get("said", ())],  # folders of before have none
            folder=home,
        )
    except (OSError, ValueError, KeyError, IndexError, TypeError, pl.exceptions.PolarsError):
        return None  # missing, or damaged


def _write(events: Interactions, folder: Path, state: Mapping[str, Any]) -> None:
    _put(events.item, folder / _ITEMS)
    codes = None if events.context is None else events.context.codes
    more = {name: column for name, column in ((_AGES, events.ages), (_CONTEXT, codes)) if column is not None}
    for name, column in more.items():
        _put(column, folder / name)
    events.offsets.astype(np.int64).tofile(folder / _OFFSETS)
    pl.DataFrame({"item_id": events.item_ids, "users": events.item_users}).write_parquet(folder / _CATALOGUE)
    pl.DataFrame({"user_id": events.user_ids}).write_parquet(folder / _USERS)
    files = (_ITEMS, *more, _OFFSETS, _CATALOGUE, _USERS)
    sizes = {name: (folder / name).stat().st_size for name in files}
    meta = {"made_of": state, "found": events.facts, "said": list(events.said), "bytes": sizes}
    (folder / META).write_text(json.dumps(meta, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for name in (*files, META):
        with open(folder / name, "rb+") as file:
            os.fsync(file.fileno())


def _put(column: np.ndarray, file: Path) -> None:
    """Write a column of the events, or rename the file that it is mapped from."""
    if isinstance(column, np.memmap):
        column.flush()
        Path(str(column.filename)).rename(file)
    else:
        column.tofile(file)


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
