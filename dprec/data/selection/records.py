"""Records of a log, drawn one by one or by person, and their micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from torch.utils.data import Dataset

from dprec.data.draws.buckets import Buckets
from dprec.data.draws.poisson import DrawsOfUsers, batch_of

_STREAM = 0x7265636F726473  # keeps the draws of records apart from other draws from the same seed


class LogOfRecords(Protocol):
    """Records, and whose each is."""

    @property
    def users(self) -> np.ndarray | None:
        """(n,) int64: equal for the records of one person."""

    @property
    def lengths(self) -> np.ndarray | None:
        """(n,) of each record, where they differ."""

    def read(self, records: np.ndarray, width: int | None = None) -> Any:
        """Return a batch of these records, in this order; those that have lengths are padded to `width`."""

    def people(self, records: np.ndarray, present: np.ndarray, width: int | None = None) -> Any:
        """Return a batch of `records`, one person after the other, in the places (B, R) of `present`."""


class TrainingRecords(Dataset):
    """Consecutive records of a log, numbered from 0, served a logical batch at a time.

    Args:
        log: all records.
        records: those for training.
        micro_batch: the most records of a micro-batch; where they have lengths, the most of all these.
        batch_size: expected in a step.
        longest: the most that a record may have, where records have lengths.
    """

    def __init__(
        self,
        log: LogOfRecords,
        records: range,
        micro_batch: int,
        batch_size: float | None = 1000,
        longest: int | None = None,
    ) -> None:
        self.log, self.records, self.micro_batch = log, records, micro_batch
        self._buckets = Buckets(batch_of(batch_size, max(1, len(records))), longest)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, record: int) -> list[Any]:
        return self.__getitems__([record])

    def __getitems__(self, records: Sequence[int]) -> list[Any]:
        """The micro-batches of one step: a partition of `records`; none for an empty draw."""
        index = self.records.start + np.asarray(records, dtype=np.int64)
        if self.log.lengths is None:
            pieces = range(0, len(index), self.micro_batch)
            return [self.log.read(index[start : start + self.micro_batch]) for start in pieces]
        groups = self._buckets.groups(self.log.lengths[index], self.micro_batch)
        return [self.log.read(index[rows], width) for rows, width in groups]


class EvaluatedRecords(Dataset):
    """Consecutive records of a log in batches: in their order, or of similar length where they have lengths."""

    def __init__(self, log: LogOfRecords, records: range, at_once: int) -> None:
        self.log = log
        self.groups: Sequence[Any]
        if log.lengths is None:
            self.groups = [records[start : start + at_once] for start in range(0, len(records), at_once)]
        else:
            groups = Buckets(len(records)).groups(log.lengths[records.start : records.stop], at_once)
            self.groups = [records.start + rows for rows, _ in groups]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: int) -> Any:
        return self.log.read(np.asarray(self.groups[number]))


class TrainingPeople(Dataset):
    """All people with a training record, numbered by their first, served a logical batch at a time.

    Of a person with more than `most` records each step draws so many, each set of them equally likely. The draw is a
    function of a key, the step and the person's number. So it is the same whenever a step's batch is made again, and
    nobody else's records change its law.

    Args:
        most: records of one person in a step; None for all.
        seed: of the draws of records; without one they are from the operating system.
        step: tells which step it is.
        log, records, micro_batch, batch_size, longest: as for `TrainingRecords`.
    """

    def __init__(
        self,
        log: LogOfRecords,
        records: range,
        micro_batch: int,
        batch_size: float | None,
        longest: int | None,
        most: int | None,
        seed: int | None,
        step: Callable[[], int],
    ) -> None:
        assert log.users is not None
        self.log, self.micro_batch, self.most, self._step = log, micro_batch, most, step
        self.offsets, self.records = _grouped(log.users[records.start : records.stop])
        self.records += records.start
        self._draws = DrawsOfUsers(seed, _STREAM)
        self._longest, expected = longest, batch_of(batch_size, len(self))
        self._of_people, self._of_records = Buckets(expected, most), Buckets(expected, longest)

    def draw_by(self, key: int) -> None:
        """Draw by another key, which several processes share."""
        self._draws.draw_by(key)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, user: int) -> list[Any]:
        return self.__getitems__([user])

    def __getitems__(self, users: Sequence[int]) -> list[Any]:
        """The micro-batches of one step: a partition of `users`; none for an empty draw."""
        step = self._step()
        own = [self._drawn(user, step) for user in users]
        places = max(1, self.micro_batch // (self._longest or 1))
        groups = self._of_people.groups(np.array([len(records) for records in own], dtype=np.int64), places)
        return [
            self._batch([own[place] for place in some], places, width)
            for people, places in groups
            for some, width in self._alike(people, own)
        ]

    def _alike(self, people: np.ndarray, own: Sequence[np.ndarray]) -> list[tuple[np.ndarray, int | None]]:
        """Return those of these people whose longest records have one padded length, and that length."""
        if self.log.lengths is None:
            return [(people, None)]
        longest = np.array([self.log.lengths[own[person]].max(initial=1) for person in people])
        groups = self._of_records.groups(longest, len(people) * int(longest.max()) * 2)
        return [(people[some], width) for some, width in groups]

    def _drawn(self, user: int, step: int) -> np.ndarray:
        records = self.records[self.offsets[user] : self.offsets[user + 1]]
        if self.most is None or len(records) <= self.most:
            return records
        rng = self._draws.of(user, step)
        return records[np.sort(rng.choice(len(records), self.most, replace=False, shuffle=False))]

    def _batch(self, own: Sequence[np.ndarray], places: int, width: int | None) -> Any:
        lengths = np.array([len(records) for records in own])
        present = np.arange(places) < lengths[:, None]  # (B, R)
        return self.log.people(np.concatenate(own), present, width)


def _grouped(users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each person's records start, and the records, one person after the other.

    >>> [part.tolist() for part in _grouped(np.array([8, 3, 8]))]
    [[0, 2, 3], [0, 2, 1]]
    """
    _, first, which, lengths = np.unique(users, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)  # people by their first record
    records = np.argsort(first[which], kind="stable")
    return np.concatenate([[0], np.cumsum(lengths[order])]), records
