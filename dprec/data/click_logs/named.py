"""A click log with named columns: read once, in any of the formats, and held in memory in time order."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl
import torch

from dprec.data.click_logs.columns import ClickColumns, WantedColumns, kept, role
from dprec.data.click_logs.features import counts, hashes, labels
from dprec.data.click_logs.log import bucket_ids
from dprec.data.draws.batch import ClickBatch, PersonBatch
from dprec.data.formats import format_of, refuse_unknown
from dprec.data.formats.compression import readable
from dprec.data.formats.delimited import Unheaded
from dprec.data.ids.keys import IdKeys, identity
from dprec.data.logs.parts import partition_of, parts_of
from dprec.data.logs.times import ReadAgain, Times
from dprec.errors import UserError


class NamedLog:
    """Records in time order, read by record number; what `ClickLog` is for Criteo's form.

    It is cut into days of about equal size. Records of the same time are of the same day.
    """

    def __init__(
        self,
        columns: ClickColumns,
        numbers: np.ndarray,
        hashed: np.ndarray,
        clicked: np.ndarray,
        days: int,
        users: np.ndarray | None = None,
        time: np.ndarray | None = None,
    ) -> None:
        if len(clicked) < days:
            raise UserError(f"the log has {len(clicked)} records: give at least one for each of {days} days")
        cuts = np.arange(days + 1) * len(clicked) // days
        if time is not None:
            order = np.argsort(time, kind="stable")
            numbers, hashed, clicked, time = numbers[order], hashed[order], clicked[order], time[order]
            users = None if users is None else users[order]
            cuts[1:-1] = np.searchsorted(time, time[cuts[1:-1]])
        self.numbers = numbers  # (n, D) float32
        self.hashed = hashed  # (n, slots) uint32
        self.clicked = clicked  # (n,) uint8
        self.users = users  # (n,) int64: equal for the records of one person
        self.days: list[int] = [int(cut) for cut in cuts]
        widths = np.array([one.slots for one in columns.categories], dtype=np.int64)
        self._sizes = np.repeat(np.array(columns.sizes, dtype=np.int64), widths)
        self._bags = np.repeat(np.array([one.bag is not None for one in columns.categories], dtype=bool), widths)
        self._places = np.full((len(widths), columns.bag), columns.slots)  # (F, P) slot of each id; the last is empty
        for feature, (first, width) in enumerate(zip(np.cumsum([0, *widths]), widths, strict=False)):
            self._places[feature, :width] = np.arange(first, first + width)

    def __len__(self) -> int:
        return self.days[-1]

    def read(self, records: np.ndarray) -> ClickBatch:
        """Records by number, in this order."""
        hashed = self.hashed[records]
        ids = bucket_ids(hashed, self._sizes)
        ids[(hashed == 0) & self._bags] = -1
        padded = np.concatenate([ids, np.full((len(ids), 1), -1)], axis=1)
        return ClickBatch(
            numbers=torch.from_numpy(self.numbers[records]),
            categories=torch.from_numpy(padded[:, self._places]),
            clicked=torch.from_numpy(self.clicked[records].astype(np.float32)),
        )

    def people(self, records: np.ndarray, present: np.ndarray) -> PersonBatch:
        """The same by person: `records` one person after the other, in the places (B, R) of `present`."""
        return PersonBatch.padded(self.read(records), present)

    @property
    def arrays(self) -> list[np.ndarray | None]:
        """All that was read."""
        return [self.numbers, self.hashed, self.clicked, self.users]

    def clicks(self, records: range) -> int:
        """How many of consecutive records were clicked. Private data."""
        return int(self.clicked[records.start : records.stop].sum(dtype=np.int64))


def read_clicks(path: Path, columns: ClickColumns, days: int) -> NamedLog:
    """Read a log: a file, a folder of parts, or a pattern. It takes 4 bytes of memory for each number and id."""
    refuse_unknown(columns.format)
    times = Times()
    while True:
        times.start_again()
        with suppress(ReadAgain):
            reading = _Reading(path, columns, times)
            for batch, part in _batches(path, columns, columns.wanted()):
                reading.add(batch, part)
            return reading.finish(days)


def read_to_predict(
    path: Path, columns: ClickColumns, beside: Sequence[str]
) -> Iterator[tuple[pl.DataFrame, NamedLog]]:
    """Yield all records of a log, many at a time, in order: what is kept beside them, and their features."""
    refuse_unknown(columns.format)
    for batch, part in _batches(path, columns, columns.wanted_to_predict(beside)):
        numbers, hashed = _features(batch, part, columns)
        unknown = np.zeros(len(batch), dtype=np.uint8)  # who clicks
        yield (
            batch.select(pl.col(kept(name)).alias(name) for name in beside),
            NamedLog(columns, numbers, hashed, unknown, days=1),
        )


def _batches(path: Path, columns: ClickColumns, wanted: WantedColumns) -> Iterator[tuple[pl.DataFrame, Path]]:
    """Yield rows of a log's parts, and which part they are of."""
    with tempfile.TemporaryDirectory(prefix="dprec-") as scratch:
        for part in parts_of(path):
            wanted.partition = partition_of(path, part)
            file = readable(part, Path(scratch))
            how = (
                format_of(file, part, columns.format) if columns.header is None else Unheaded(columns.header, part.name)
            )
            for batch in how.table(file, part, wanted).batches():
                yield batch, part
            if file != part:
                file.unlink()


def _features(batch: pl.DataFrame, part: Path, columns: ClickColumns) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers (n, D) and the hashed categories (n, slots) of rows."""
    rows = batch["row"].to_numpy()
    numbers = [counts(batch[role(one)], rows, part, one) for one in columns.numbers]
    hashed = [hashes(batch[role(one)], part, one) for one in columns.categories]
    return (
        np.stack(numbers, 1) if numbers else np.zeros((len(batch), 0), np.float32),
        np.concatenate(hashed, 1) if hashed else np.zeros((len(batch), 0), np.uint32),
    )


class _Reading:
    """One pass over a log."""

    def __init__(self, path: Path, columns: ClickColumns, times: Times) -> None:
        self.path, self.columns, self.times = path, columns, times
        self.ids = IdKeys(path, "user")
        self.kept: dict[str, list[np.ndarray]] = {name: [] for name in ("numbers", "hashed", "clicked", "user", "time")}
        self.without_user = 0

    def add(self, batch: pl.DataFrame, part: Path) -> None:
        if self.columns.user is not None:
            _refuse_nested(batch["user"], part, "user_column")
            keys = self.ids.read(batch["user"])
            somebody = pl.Series(keys >= 0)
            self.without_user += len(batch) - int(somebody.sum())
            batch, keys = batch.filter(somebody), keys[somebody.to_numpy()]
            self.kept["user"].append(identity(keys))
        if not len(batch):
            return
        rows = batch["row"].to_numpy()
        self.kept["clicked"].append(labels(batch["label"], rows, part, self.columns.label, self.columns.clicked))
        numbers, hashed = _features(batch, part, self.columns)
        self.kept["numbers"].append(numbers)
        self.kept["hashed"].append(hashed)
        if self.columns.time is not None:
            _refuse_nested(batch["time"], part, "time_column")
            self.kept["time"].append(self.times.read(batch["time"], part, rows))

    def finish(self, days: int) -> NamedLog:
        if self.without_user:
            said = f"{self.without_user:,} rows have no user id and count for nothing"
            print(f"{self.path}: {said}", file=sys.stderr)
        if not self.kept["clicked"]:
            raise UserError(f"{self.path} has no records: a click log has at least one, and a user's with user_column")
        joined = {name: np.concatenate(parts) if parts else None for name, parts in self.kept.items()}
        numbers, hashed, clicked = joined["numbers"], joined["hashed"], joined["clicked"]
        assert numbers is not None
        assert hashed is not None
        assert clicked is not None
        if self.columns.time is not None:
            self.times.finish(self.path)
            if len(clicked) > 1:
                self.times.refuse_equal(self.path)
        return NamedLog(self.columns, numbers, hashed, clicked, days, joined["user"], joined["time"])


def _refuse_nested(column: pl.Series, part: Path, setting: str) -> None:
    if column.dtype.is_nested():
        raise UserError(f"{part}: the {setting} holds {column.dtype}: set data.{setting} to a column of single values")
