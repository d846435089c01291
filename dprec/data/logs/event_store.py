"""Events in the order of a log, kept until the whole log is read: in memory, or in files by user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BUCKETS = 251  # a prime, so that ids with a common factor spread; below 2^8, which numpy sorts by counting
BUFFER = 2**22  # events in memory, 24 bytes each


@dataclass(frozen=True)
class Rows:
    """Events of some users, in the order of the log."""

    user: np.ndarray  # (e,) small numbers, in the order of the keys that `keys` returns for them
    item: np.ndarray  # (e,) keys
    time: np.ndarray  # (e,)
    codes: np.ndarray | None  # (e,) of the context
    bucket: int | None

    def keys(self, user: np.ndarray) -> np.ndarray:
        """The keys of users."""
        return user if self.bucket is None else ((user >> 2) * BUCKETS + self.bucket) << 2 | user & 3


class EventStore:
    """Events as (user key, item key, time), and perhaps their context.

    `buckets` returns all events of a user in one bucket, in the log's order.

    A few events stay in memory as one bucket; more events go to `BUCKETS` files in `folder`.

    >>> store = EventStore(Path("unused"))
    >>> store.add(np.array([8, 4, 8]), np.array([0, 0, 4]), np.array([3, 2, 1]))
    >>> [(rows.keys(rows.user).tolist(), rows.time.tolist()) for rows in store.buckets()]
    [([8, 4, 8], [3, 2, 1])]
    """

    def __init__(self, folder: Path, with_context: bool = False) -> None:
        self.folder = folder
        self.columns = 4 if with_context else 3
        self.events = 0
        self.spilled = False
        self._held: list[np.ndarray] = []  # (n, columns) each
        self._waiting = 0

    def add(self, user: np.ndarray, item: np.ndarray, time: np.ndarray, codes: np.ndarray | None = None) -> None:
        columns = [user, item, time] if codes is None else [user, item, time, codes]
        self._held.append(np.stack(columns, axis=1))
        self.events += len(user)
        self._waiting += len(user)
        if self._waiting > BUFFER:
            self._spill()

    def buckets(self) -> Iterator[Rows]:
        """All events; each bucket is read when it is asked for, and its file is deleted."""
        if not self.spilled:
            yield _rows(np.concatenate([np.empty((0, self.columns), dtype=np.int64), *self._held]), None)
            self._held = []
            return
        self._spill()
        for bucket in range(BUCKETS):
            path = self._file(bucket)
            if path.exists():
                yield _rows(np.fromfile(path, dtype=np.int64).reshape(-1, self.columns), bucket)
                path.unlink()

    def _file(self, bucket: int) -> Path:
        return self.folder / f"{bucket}.events"

    def _spill(self) -> None:
        if not self.spilled:
            for bucket in range(BUCKETS):  # files of a reading that was stopped
                self._file(bucket).unlink(missing_ok=True)
        self.spilled = True
        parts, ends = [], []
        for rows in self._held:
            number = rows[:, 0] >> 2
            quotient = number // BUCKETS  # with the line below it takes a third of the time of np.divmod
            remainder = number - quotient * BUCKETS
            rows[:, 0] = quotient << 2 | rows[:, 0] & 3
            order = np.argsort(remainder.astype(np.uint8), kind="stable")
            parts.append(np.take(rows, order, axis=0))  # four times as fast as rows[order]
            ends.append(np.append(0, np.cumsum(np.bincount(remainder, minlength=BUCKETS))))
        self._held, self._waiting = [], 0
        for bucket in range(BUCKETS):
            with open(self._file(bucket), "ab") as file:
                for rows, end in zip(parts, ends, strict=True):
                    rows[end[bucket] : end[bucket + 1]].tofile(file)


def _rows(table: np.ndarray, bucket: int | None) -> Rows:
    user, item, time, *codes = np.ascontiguousarray(table.T)
    return Rows(user, item, time, codes[0] if codes else None, bucket)
