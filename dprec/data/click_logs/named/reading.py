"""From the files of a click log with named columns to its records in time order: in memory, or in a prepared folder.

    values.int32   of every record its numbers and hashes, side by side
    clicked.uint8  1 for a click
    users.int64    whose each record is, by a hash of the id; missing without data.user_column
    time.int64     in ascending order; missing without data.time_column

The folder holds people's records and is as private as the log.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from dprec.data.arrays.made_once import facts_of, make_once
from dprec.data.arrays.mapped import forget
from dprec.data.arrays.ordering import stable_order
from dprec.data.click_logs.named.columns import ClickColumns, WantedColumns, kept, role
from dprec.data.click_logs.named.features import counts, hashes, labels
from dprec.data.click_logs.named.log import NamedLog, Records, side_by_side
from dprec.data.formats import format_of, refuse_unknown
from dprec.data.formats.delimited import Unheaded
from dprec.data.formats.format import Format
from dprec.data.formats.table import THE_ROWS, Table
from dprec.data.ids.keys import IdKeys, identity
from dprec.data.logs.parts import home_of, is_kept, state_of, tables_of
from dprec.data.logs.reading import shown
from dprec.data.logs.times import ReadAgain, Times
from dprec.errors import UserError
from dprec.notices import kept as kept_notices
from dprec.notices import say

_FORMAT = "clicks 1"  # raise the number when the content of the files changes
_KINDS = {"values": np.int32, "clicked": np.uint8, "users": np.int64, "time": np.int64}
Advance: TypeAlias = "Callable[[int], object]"
_TOGETHER = 1 << 18  # records that are put into order at once


def read_clicks(path: Path, columns: ClickColumns, days: int, cache: Path | None = None) -> NamedLog:
    """Read a log: a file, a folder of parts, or a pattern.

    A large log, or with `cache` any, is read once into a folder beside it or there, and mapped from then on. Of another
    one the records are in memory: 4 bytes for each number and id.
    """
    refuse_unknown(columns.format)
    settings = columns.reading
    home = home_of(path, settings, cache)
    if not is_kept(path, home, cache):
        return NamedLog(columns, _read(path, columns, None), days)

    def write(work: Path) -> dict[str, Any]:
        with kept_notices() as said, shown(path, passes=1) as advance:
            records = _read(path, columns, work, advance)
        return {"found": dict(records.facts), "said": said}

    def state() -> dict[str, Any]:
        return {"format": _FORMAT, **state_of(path, settings)}

    room = f"it takes about {4 * columns.width + 17} bytes a record, more while records are put into order"
    records, made = make_once(home, path, state, lambda state: _opened(home, state, columns.width), write, room)
    if not made:
        for text in records.said:
            say(text)
    return NamedLog(columns, records, days)


def read_to_predict(
    path: Path, columns: ClickColumns, beside: Sequence[str]
) -> Iterator[tuple[pl.DataFrame, NamedLog]]:
    """Yield all records of a log, many at a time, in order: what is kept beside them, and their features."""
    refuse_unknown(columns.format)
    for table in _tables(path, columns, columns.wanted_to_predict(beside)):
        for batch in table.batches():
            numbers, hashed = _features(batch, table.part, columns)
            unknown = np.zeros(len(batch), dtype=np.uint8)  # who clicks
            yield (
                batch.select(pl.col(kept(name)).alias(name) for name in beside),
                NamedLog(columns, Records(side_by_side(numbers, hashed), unknown), days=1),
            )


def _tables(path: Path, columns: ClickColumns, wanted: WantedColumns) -> Iterator[Table]:
    header = columns.header

    def format(file: Path, part: Path) -> Format:
        return format_of(file, part, columns.format) if header is None else Unheaded(header, part.name)

    with tempfile.TemporaryDirectory(prefix="dprec-") as scratch:
        yield from tables_of(path, wanted, format, Path(scratch))


def _features(batch: pl.DataFrame, part: Path, columns: ClickColumns) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers (n, D) and the hashed categories (n, slots) of rows."""
    rows = batch["row"].to_numpy()
    numbers = [counts(batch[role(one)], rows, part, one) for one in columns.numbers]
    hashed = [hashes(batch[role(one)], part, one) for one in columns.categories]
    return (
        np.stack(numbers, 1) if numbers else np.zeros((len(batch), 0), np.float32),
        np.concatenate(hashed, 1) if hashed else np.zeros((len(batch), 0), np.uint32),
    )


class _Columns:
    """Columns of records in the order of the log: in memory, or with a folder in files there."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.start_again()

    def start_again(self) -> None:
        self._parts: dict[str, list[np.ndarray]] = {}
        self.records = 0

    def add(self, **columns: np.ndarray) -> None:
        for name, column in columns.items():
            if self._folder is None:
                self._parts.setdefault(name, []).append(column)
                continue
            with open(self._folder / _file(name), "ab" if self.records else "wb") as file:
                file.write(np.ascontiguousarray(column, dtype=_KINDS[name]).data)
        self.records += len(columns["clicked"])

    def whole(self, width: int) -> Records:
        """All of them; `values` are so wide."""
        if self._folder is None:
            return _records({name: np.concatenate(parts) for name, parts in self._parts.items()})
        return _mapped(self._folder, width)

    def ordered(self, records: Records, order: np.ndarray) -> Records:
        """The same in another order; in files a piece at a time."""
        columns = {name: column for name in _KINDS if (column := getattr(records, name)) is not None}
        if self._folder is None:
            return _records({name: column[order] for name, column in columns.items()})
        for name, column in columns.items():
            with open(self._folder / "ordered", "wb") as file:
                for first in range(0, len(order), _TOGETHER):
                    file.write(np.ascontiguousarray(column[order[first : first + _TOGETHER]]).data)
                    forget(column)
            (self._folder / "ordered").replace(self._folder / _file(name))
        return _mapped(self._folder, records.values.shape[1])


def _file(name: str) -> str:
    return f"{name}.{np.dtype(_KINDS[name]).name}"


def _records(columns: Mapping[str, np.ndarray]) -> Records:
    return Records(columns["values"], columns["clicked"], columns.get("users"), columns.get("time"))


def _mapped(folder: Path, width: int) -> Records:
    columns = {
        name: np.memmap(folder / _file(name), dtype=kind, mode="r")
        for name, kind in _KINDS.items()
        if (folder / _file(name)).exists()
    }
    return _records({**columns, "values": columns["values"].reshape(-1, width)})


def _opened(home: Path, state: Mapping[str, Any], width: int) -> Records | None:
    facts = facts_of(home, state)
    return None if facts is None else replace(_mapped(home, width), facts=facts["found"], said=facts["said"])


class _Reading:
    """One pass over a log."""

    def __init__(self, path: Path, columns: ClickColumns, store: _Columns, times: Times) -> None:
        self.path, self.columns, self.store, self.times = path, columns, store, times
        self.ids = IdKeys(path, "user")
        self.rows = self.left_out = self.without_user = 0
        self.unlisted: dict[str, int] = {}  # records whose value of a column no public list has

    def add(self, batch: pl.DataFrame, part: Path) -> None:
        self.rows += len(batch)
        own: dict[str, np.ndarray] = {}
        if self.columns.user is not None:
            _refuse_nested(batch["user"], part, "user_column")
            keys = self.ids.read(batch["user"])
            somebody = pl.Series(keys >= 0)
            self.without_user += len(batch) - int(somebody.sum())
            batch, keys = batch.filter(somebody), keys[somebody.to_numpy()]
            own["users"] = identity(keys)
        if not len(batch):
            return
        rows = batch["row"].to_numpy()
        clicked = labels(batch["label"], rows, part, self.columns.label, self.columns.clicked)
        numbers, hashed = _features(batch, part, self.columns)
        if self.columns.time is not None:
            _refuse_nested(batch["time"], part, "time_column")
            own["time"] = self.times.read(batch["time"], part, rows)
        self._count_unlisted(hashed)
        self.store.add(values=side_by_side(numbers, hashed), clicked=clicked, **own)

    def _count_unlisted(self, hashed: np.ndarray) -> None:
        place = 0
        for one in self.columns.categories:
            own, place = hashed[:, place : place + one.slots], place + one.slots
            if one.vocabulary is not None:
                strange = int((own > len(one.vocabulary.values)).any(1).sum())
                self.unlisted[one.column] = self.unlisted.get(one.column, 0) + strange

    def leave_out(self, rows: int) -> None:
        """Count rows that `data.where` left out."""
        self.rows += rows
        self.left_out += rows

    def finish(self) -> Records:
        if self.without_user:
            self.ids.say_without(self.without_user)
        for column, count in self.unlisted.items():
            if count:
                say(
                    f"{self.path}: {count:,} of {self.store.records:,} records have a value of '{column}' that "
                    "data.categories does not list: all such values share one id; iOS and ios are two values"
                )
        if not self.store.records:
            raise UserError(f"{self.path} has no records: a click log has at least one, and a user's with user_column")
        found = self.store.whole(self.columns.width)
        if found.time is not None:
            self.times.finish(self.path)
            if len(found.time) > 1:
                self.times.refuse_equal(self.path)
            if bool((found.time[1:] < found.time[:-1]).any()):
                found = self.store.ordered(found, stable_order([found.time]))
        if found.users is not None:
            self.ids.warn_of_alike(np.unique(found.users))
        return replace(found, facts=self._facts())

    def _facts(self) -> dict[str, Any]:
        """Facts about the log and its rows, in plain values. Private data."""
        return {
            "rows": self.rows,
            "not_as_where_says": self.left_out,
            "without_user_id": self.without_user,
            "time_from": THE_ROWS if self.columns.time is None else f"column '{self.columns.time}'",
            "times": "none" if self.columns.time is None else self.times.said,
        }


def _read(path: Path, columns: ClickColumns, folder: Path | None, advance: Advance = lambda _: None) -> Records:
    times, store = Times(), _Columns(folder)
    while True:
        times.start_again()
        store.start_again()
        with suppress(ReadAgain):
            reading = _Reading(path, columns, store, times)
            for table in _tables(path, columns, columns.wanted()):
                for batch in table.batches():
                    reading.add(batch, table.part)
                    advance(len(batch))
                reading.leave_out(table.left_out)
            return reading.finish()


def _refuse_nested(column: pl.Series, part: Path, setting: str) -> None:
    if column.dtype.is_nested():
        raise UserError(f"{part}: the {setting} holds {column.dtype}: set data.{setting} to a column of single values")
