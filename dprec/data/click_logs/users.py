"""The people of a log: which records are whose, and the micro-batches of drawn people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np
from torch.utils.data import Dataset

from dprec.data.draws.buckets import Buckets
from dprec.data.draws.of_users import DrawsOfUsers
from dprec.data.draws.poisson import batch_of
from dprec.errors import UserError

_STREAM = 0x7265636F726473  # keeps the draws of records apart from other draws from the same seed


People = TypeVar("People", covariant=True)


class LogOfPeople(Protocol[People]):
    """Records, and whose each is."""

    @property
    def users(self) -> np.ndarray | None:
        """(n,) int64: equal for the records of one person."""

    @property
    def lengths(self) -> np.ndarray | None:
        """(n,) of each record, where they differ."""

    def people(self, records: np.ndarray, present: np.ndarray, width: int | None = None) -> People:
        """Return a batch of `records`, one person after the other, in the places (B, R) of `present`.

        Records that have lengths are padded to `width`.
        """


class TrainingPeople(Dataset, Generic[People]):
    """All people with a training record, numbered by their first, served a logical batch at a time.

    Of a person with more than `most` records each step draws so many, each set of them equally likely. The draw is a
    function of a key, the step and the person's number. So it is the same whenever a step's batch is made again, and
    nobody else's records change its law. `step` tells which step it is.
    """

    def __init__(
        self,
        log: LogOfPeople[People],
        records: range,
        most: int | None,
        micro_batch: int,
        seed: int | None,
        step: Callable[[], int],
        batch_size: float | None = 1000,
        longest: int | None = None,
    ) -> None:
        """`longest` is the most that a record may have, where records have lengths."""
        if micro_batch < 1:
            raise UserError(f"data.micro_batch is {micro_batch}: give a micro-batch at least 1 record")
        assert log.users is not None
        self.log, self.micro_batch, self.most, self._step = log, micro_batch, most, step
        self.offsets, self.records = _grouped(log.users[records.start : records.stop])
        self.records += records.start
        self._draws = DrawsOfUsers(seed, _STREAM)
        expected = batch_of(batch_size, len(self))
        self._of_people, self._of_records = Buckets(expected, most), Buckets(expected, longest)

    def draw_by(self, key: int) -> None:
        """Draw by another key, which several processes share."""
        self._draws.draw_by(key)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, user: int) -> list[People]:
        return self.__getitems__([user])

    def __getitems__(self, users: Sequence[int]) -> list[People]:
        """The micro-batches of one step: a partition of `users`; none for an empty draw."""
        step = self._step()
        own = [self._drawn(user, step) for user in users]
        groups = self._of_people.groups(np.array([len(records) for records in own], dtype=np.int64), self.micro_batch)
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

    def _batch(self, own: Sequence[np.ndarray], places: int, width: int | None) -> People:
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
