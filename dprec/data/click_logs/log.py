"""A click log: its records in time order, in memory or mapped from files, read by record number or by person."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from dprec.data.click_logs.columns import ClickColumns, clicks, counts, hashes, kept, role
from dprec.data.draws.batch import ClickBatch, PersonBatch
from dprec.data.formats.format import Format
from dprec.data.logs.ids import bucket_ids
from dprec.data.logs.reader import LogReader, Rows
from dprec.data.logs.store import ColumnStore, Kept, forget, kept_if_large
from dprec.errors import UserError
from dprec.notices import say

_FORMAT = "clicks 2"  # of a folder: raise the number when the content of the files changes
_TOGETHER = 1 << 18  # records that are put into order at once


class ClickLog:
    """Records in time order, read by record number.

    It is cut into days of about equal size, or at the ends of its parts. Records of the same time are of the same day.

    Args:
        columns: how a record is read.
        found: of each record the `values`, which lie side by side, so that reading a record touches one page: the bits
            of float32 numbers, then those of uint32 hashes, which do not depend on the sizes of tables; `clicked`;
            perhaps `user`, equal for the records of one person, and `time`, ascending.
        days: the number of days, if `ends` is not given.
        facts: what was read and left out. Private data.
    """

    def __init__(
        self,
        columns: ClickColumns,
        found: Mapping[str, np.ndarray],
        days: int,
        facts: Mapping[str, Any] | None = None,
        ends: Sequence[int] | None = None,
    ) -> None:
        count = len(found["clicked"])
        if count < days:
            raise UserError(f"the log has {count} records: give at least one for each of {days} days")
        cuts = np.arange(days + 1) * count // days if ends is None else np.array([0, *ends])
        time: np.ndarray | None = found.get("time")
        if time is not None:
            cuts[1:-1] = np.searchsorted(time, time[cuts[1:-1]])
        self.days: list[int] = [int(cut) for cut in cuts]
        self.users: np.ndarray | None = found.get("user")
        self.lengths: np.ndarray | None = None  # all records are as wide
        self.facts = dict(facts or {})
        self._values, self._clicked, self._numbers = found["values"], found["clicked"], len(columns.numbers)
        widths = np.array([one.slots for one in columns.categories], dtype=np.int64)
        self._sizes = np.repeat(np.array(columns.sizes, dtype=np.int64), widths)
        self._bags = np.repeat(np.array([one.bag is not None for one in columns.categories], dtype=bool), widths)
        self._places = np.full((len(widths), columns.bag), columns.slots)  # (F, P) slot of each id; the last is empty
        for feature, (first, width) in enumerate(zip(np.cumsum([0, *widths]), widths, strict=False)):
            self._places[feature, :width] = np.arange(first, first + width)

    def __len__(self) -> int:
        return self.days[-1]

    def read(self, records: np.ndarray, width: int | None = None) -> ClickBatch:
        """Return records by number, in this order; mapped files then take no memory."""
        numbers, hashed = self._apart(self._values[records])
        clicked = self._clicked[records].astype(np.float32)
        forget(self._values, self._clicked)
        ids = bucket_ids(hashed, self._sizes)
        ids[(hashed == 0) & self._bags] = -1
        padded = np.concatenate([ids, np.full((len(ids), 1), -1)], axis=1)
        return ClickBatch(
            numbers=torch.from_numpy(np.ascontiguousarray(numbers)),
            categories=torch.from_numpy(padded[:, self._places]),
            clicked=torch.from_numpy(clicked),
        )

    def people(self, records: np.ndarray, present: np.ndarray, width: int | None = None) -> PersonBatch:
        """Return records by person: `records`, one person after the other, in the places (B, R) of `present`."""
        return PersonBatch.padded(self.read(records), present, own_length=True)

    @property
    def arrays(self) -> list[np.ndarray | None]:
        """All arrays of the log."""
        return [*self._apart(self._values), self._clicked, self.users]

    def clicks(self, records: range) -> int:
        """How many of consecutive records were clicked. Private data."""
        return int(self._clicked[records.start : records.stop].sum(dtype=np.int64))

    def _apart(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values[:, : self._numbers].view(np.float32), values[:, self._numbers :].view(np.uint32)


def side_by_side(numbers: np.ndarray, hashed: np.ndarray) -> np.ndarray:
    """The values of records from numbers (n, D) float32 and hashes (n, slots) uint32."""
    return np.concatenate([numbers.view(np.int32), hashed.view(np.int32)], axis=1)


def read_clicks(
    path: Path, columns: ClickColumns, days: int, cache: Path | None = None, parts: Sequence[Path] | None = None
) -> ClickLog:
    """Read a log: a file, a folder of parts, or a pattern.

    A large log (with `cache`, any) is read once into a folder beside it (or in `cache`), and mapped from then on. Other
    logs are held in memory: 4 bytes for each number and id. If `parts` are given, each is a day.
    """
    found = kept_if_large(path, _FORMAT, columns.reading, cache, partial(_read, path, columns, parts), parts)
    facts = dict(found.facts)
    ends = facts.pop("ends")
    return ClickLog(columns, found.columns, days, facts, None if parts is None else ends)


def _read(path: Path, columns: ClickColumns, parts: Sequence[Path] | None, folder: Path | None) -> Kept:
    features = partial(_labelled, columns)
    reader = LogReader(path, columns.wanted(), features, columns.format_of, folder, parts, columns.time is not None)
    rows = reader.read()
    rows.refuse_none()
    found = rows.columns
    _say_unlisted(rows, columns)
    if rows.timed and rows.kept > 1:
        rows.times.refuse_equal(path)
    if rows.timed:
        order, store = np.argsort(found["time"], kind="stable"), ColumnStore(folder)
        for first in range(0, len(order), _TOGETHER):
            store.add(**{name: column[order[first : first + _TOGETHER]] for name, column in found.items()})
            forget(*found.values())
        found = store.whole()
    if columns.user is not None:
        rows.ids["user"].warn_of_alike(rows.ids["user"].numbered(found["user"])[0])
    facts = {
        **rows.facts,
        "without_user_id": rows.without.get("user", 0),
        "time_from": rows.time_from,
        "times": rows.span,
        "ends": rows.ends,
    }
    return Kept(found, facts=facts)


def _labelled(columns: ClickColumns, batch: pl.DataFrame, part: Path) -> dict[str, np.ndarray]:
    clicked = clicks(batch, part, columns.label, columns.clicked)
    return {"values": side_by_side(*_features(columns, batch, part)), "clicked": clicked}


def _features(columns: ClickColumns, batch: pl.DataFrame, part: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers (n, D) and the hashed categories (n, slots) of rows."""
    numbers = [counts(batch, part, one) for one in columns.numbers]
    hashed = [hashes(batch[role(one)], part, one) for one in columns.categories]
    return (
        np.stack(numbers, 1) if numbers else np.zeros((len(batch), 0), np.float32),
        np.concatenate(hashed, 1) if hashed else np.zeros((len(batch), 0), np.uint32),
    )


def _say_unlisted(rows: Rows, columns: ClickColumns) -> None:
    """Print how many records have a value that is not in a public list."""
    place = len(columns.numbers)
    for one in columns.categories:
        own, place = rows.columns["values"][:, place : place + one.slots], place + one.slots
        if one.vocabulary is None:
            continue
        if count := int((own > len(one.vocabulary.values)).any(1).sum()):
            say(
                f"{rows.path}: {count:,} of {rows.kept:,} records have a value of '{one.column}' that "
                "data.categories does not list: they share one id (iOS and ios differ)"
            )


def read_to_predict(
    path: Path, columns: ClickColumns, beside: Sequence[str], frame: Format | None = None
) -> Iterator[tuple[pl.DataFrame, ClickLog]]:
    """Yield all records of a log or data frame, many at a time, in order: columns to keep, and features."""
    wanted, format_of = columns.wanted_to_predict(beside), columns.format_of if frame is None else lambda part: frame
    parts = None if frame is None else [path]
    for table in LogReader(path, wanted, partial(_labelled, columns), format_of, parts=parts).tables():
        for batch in table.batches():
            unknown = np.zeros(len(batch), dtype=np.uint8)  # not known yet
            values = side_by_side(*_features(columns, batch, table.part))
            chosen = batch.select(pl.col(kept(name)).alias(name) for name in beside)
            yield chosen, ClickLog(columns, {"values": values, "clicked": unknown}, days=1)
