"""Packs users into padded batches under a token budget, and samples users to rank if all would take too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from dprec.data.draws.batch import RankingBatch, SequenceBatch
from dprec.data.draws.buckets import Buckets
from dprec.data.draws.poisson import DrawsOfUsers, batch_of
from dprec.errors import UserError

if TYPE_CHECKING:
    from dprec.data.draws.poisson import OneTarget
    from dprec.data.logs.context import EventWeights
    from dprec.data.logs.histories import EventContext, Histories, Split
    from dprec.data.selection.held_out import SplitHistories


_MOST = 1 << 15  # users at once: torch's attention takes 65,535 on a GPU
_SCORES = 2**24  # scores of one ranking batch, users x items: 64 MiB of float32


def padded(items: np.ndarray, starts: np.ndarray, lengths: np.ndarray, width: int | None = None) -> Tensor:
    """Return rows `items[start : start + length]`, padded on the right with 0 to `width` or the longest: (B, T)."""
    places = np.arange(max(1, int(lengths.max(initial=0))) if width is None else width)  # (T,)
    inside = places < lengths[:, None]  # (B, T)
    rows = np.zeros(inside.shape, dtype=np.int64)
    rows[inside] = items[(starts[:, None] + places)[inside]]
    return torch.from_numpy(rows)


def _values(
    context: EventContext | None, starts: np.ndarray, lengths: np.ndarray, width: int | None = None
) -> Tensor | None:
    """Return (B, T, C) the context values of each event of a history, if there is context."""
    if context is None:
        return None
    return torch.from_numpy(context.columns.values(padded(context.codes, starts, lengths, width).numpy()))


class TrainingUsers(Dataset):
    """Serves each user's most recent `max_length` training transitions, a logical batch at a time.

    With `one_target`, a step has one random transition of each user and the `max_length` events before it.
    """

    def __init__(
        self,
        training: Histories,
        max_length: int,
        tokens: int,
        one_target: OneTarget | None = None,
        batch_size: float | None = 1000,
        weights: EventWeights | None = None,
    ) -> None:
        if max_length < 1:
            raise UserError(f"data.max_length is {max_length}: a history needs at least 1 item")
        self.training = training
        self.buckets = Buckets(batch_of(batch_size, max(1, training.users)), max_length)
        self.tokens = tokens
        self.max_length = max_length
        self.one_target = one_target
        self.weights = weights

    def draw_by(self, key: int) -> None:
        """Draw targets by a key that several processes share."""
        if self.one_target is not None:
            self.one_target.draws.draw_by(key)

    def __len__(self) -> int:
        return self.training.users

    def __getitem__(self, user: int) -> list[SequenceBatch]:
        return self.__getitems__([user])

    def __getitems__(self, users: Sequence[int]) -> list[SequenceBatch]:
        """The micro-batches of one step: a partition of `users`; none for an empty draw.

        A user without a transition has a row of zeros, and so a loss and a gradient of zero.
        """
        index = np.asarray(users, dtype=np.int64)
        ends = self.training.ends[index]
        if self.one_target is not None:
            first = self.training.starts[index]
            ends = np.minimum(first + 2 + self.one_target(index, ends - first - 1), ends)
        lengths = np.clip(ends - self.training.starts[index] - 1, 0, self.max_length)  # transitions
        starts = np.maximum(ends - 1 - lengths, 0)
        groups = self.buckets.groups(lengths, self.tokens, _MOST)
        batches = [self._batch(starts[rows], lengths[rows], width) for rows, width in groups]
        self.training.forget()  # otherwise a process would hold more of a mapped log with every step
        return batches

    def _batch(self, starts: np.ndarray, lengths: np.ndarray, width: int) -> SequenceBatch:
        items = self.training.items
        history, targets = padded(items, starts, lengths, width), padded(items, starts + 1, lengths, width)
        if self.one_target is not None:
            targets[torch.arange(targets.shape[1]) < torch.from_numpy(lengths)[:, None] - 1] = 0  # all but the last
        context = _values(self.training.context, starts, lengths, width)
        weights = None
        if self.weights is not None:
            of_targets = _values(self.training.context, starts + 1, lengths, width)
            assert of_targets is not None
            weights = torch.from_numpy(self.weights(of_targets.numpy()))
        return SequenceBatch(history, targets, context, weights, own_length=True)


class RankingUsers(Dataset):
    """Serves the held-out users of a split, or a sample of them, in ranking batches of similar length."""

    def __init__(
        self,
        split: SplitHistories,
        which: Split,
        max_length: int,
        tokens: int,
        items: int,
        sample: int | None = None,
    ) -> None:
        if max_length < 1:
            raise UserError(f"data.max_length is {max_length}: a history needs at least 1 item")
        self.histories = split.histories
        self.max_length = max_length
        held = split.held_out(which)
        self.population = len(held.users)
        chosen = sampled(held.users, items, sample)
        self.firsts, self.ends = held.first[chosen], held.end[chosen]
        self.users = len(self.firsts)
        self.starts = split.histories.starts[held.users[chosen]]
        buckets, at_once = Buckets(self.users), max(1, min(_MOST, _SCORES // items))
        self.groups = [rows for rows, _ in buckets.groups(self.firsts - self.starts, tokens, at_once)]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: int) -> RankingBatch:
        group = self.groups[number]
        starts, firsts = self.starts[group], self.firsts[group]
        seen = firsts - starts
        recent = np.minimum(seen, self.max_length)
        items = self.histories.items
        batch = RankingBatch(
            history=padded(items, firsts - recent, recent),
            target=self._targets(firsts, self.ends[group] - firsts),
            seen=padded(items, starts, seen),
            context=_values(self.histories.context, firsts - recent, recent),
        )
        self.histories.forget()
        return batch

    def _targets(self, firsts: np.ndarray, lengths: np.ndarray) -> Tensor:
        """(B,) if each user has one held-out event, else each one's distinct items: (B, K)."""
        targets = padded(self.histories.items, firsts, lengths)
        if targets.shape[1] == 1:
            return targets[:, 0]
        targets = targets.sort(dim=1, descending=True).values
        targets[:, 1:][targets[:, 1:] == targets[:, :-1]] = 0
        return targets.sort(dim=1, descending=True).values


# Ranking costs users x items. Up to this cost all users are ranked, which takes minutes on one core. Above it, this
# many users give a standard error of 0.001 if the standard deviation of NDCG@10 is 0.22, as it is at a mean of 0.1. Of
# more than a million items fewer are ranked, for as long; with 5,000 it is 0.003.
_CHEAP = 2**35
_ENOUGH, _LEAST, _LONG = 50_000, 5_000, 2**36


def sampled(users: np.ndarray, items: int, wanted: int | None) -> np.ndarray:
    """Return the positions in `users` of the users to rank, ascending: those whose numbers have the lowest hashes.

    The same users give the same sample in every process and evaluation, and a larger sample contains a smaller one.
    None takes all users if that is cheap, otherwise enough for a small standard error.

    >>> users = np.arange(100, 200)
    >>> few, more = sampled(users, items=10, wanted=3), sampled(users, items=10, wanted=5)
    >>> len(few), set(few) < set(more), len(sampled(users, items=10, wanted=None)), len(sampled(users, 10, 1000))
    (3, True, 100, 100)
    """
    if wanted is not None and wanted < 1:
        raise UserError(f"data.metrics_users is {wanted}: give at least 1 user, or null for the default")
    if wanted is None:
        wanted = len(users) if len(users) * items <= _CHEAP else max(_LEAST, min(_ENOUGH, _LONG // items))
    if wanted >= len(users):
        return np.arange(len(users))
    return np.sort(np.argpartition(_hashes(users), wanted - 1)[:wanted])


def _hashes(numbers: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: a bijection, so no two users tie."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


# Records of a log, drawn one by one or by person, and their micro-batches.


_STREAM = 0x7265636F726473  # keeps the draws of records apart from other draws from the same seed


class LogOfRecords(Protocol):
    """Records, and the person of each."""

    @property
    def users(self) -> np.ndarray | None:
        """(n,) int64: equal for the records of one person."""

    @property
    def lengths(self) -> np.ndarray | None:
        """(n,) each record's length, if lengths differ."""

    def read(self, records: np.ndarray, width: int | None = None) -> Any:
        """Return a batch of these records, in this order; records with lengths are padded to `width`."""

    def people(self, records: np.ndarray, present: np.ndarray, width: int | None = None) -> Any:
        """Return a batch of `records`, one person after the other, in the places (B, R) of `present`."""


class TrainingRecords(Dataset):
    """Serves consecutive records of a log, numbered from 0, a logical batch at a time.

    Args:
        log: all records.
        records: those for training.
        micro_batch: the most records of a micro-batch; if records have lengths, their greatest total padded length.
        batch_size: expected records in a step.
        longest: the greatest length of a record, if records have lengths.
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
        return [self.log.read(*part) for part in _in_parts(self.log, index, self.micro_batch, self._buckets)]


class EvaluatedRecords(Dataset):
    """Serves consecutive records of a log in batches, in order; if they have lengths, by similar length."""

    def __init__(self, log: LogOfRecords, records: range, at_once: int) -> None:
        self.log, index = log, np.arange(records.start, records.stop)
        self.groups = [part for part, _ in _in_parts(log, index, at_once, Buckets(len(records)))]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: int) -> Any:
        return self.log.read(self.groups[number])


def _in_parts(
    log: LogOfRecords, records: np.ndarray, at_once: int, buckets: Buckets
) -> list[tuple[np.ndarray, int | None]]:
    """Divide records into parts: in order, or by padded length; return each part and its padded length."""
    if log.lengths is None:
        return [(records[start : start + at_once], None) for start in range(0, len(records), at_once)]
    return [(records[rows], width) for rows, width in buckets.groups(log.lengths[records], at_once)]


class TrainingPeople(Dataset):
    """Serves all people with a training record, numbered by their first record, a logical batch at a time.

    Of a person with more than `most` records, each step draws `most`, each set equally likely. The draw is a function
    of a key, the step and the person's number. So it is the same whenever a step's batch is made again, and other
    people's records do not change its distribution.

    Args:
        most: records of one person in a step; None for all.
        seed: of the draws of records; without one, the operating system's entropy.
        step: returns the number of the step.
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
        """Draw by a key that several processes share."""
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
        """Group people by the padded length of their longest record; return each group and that length."""
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
    """Return where each person's records start, and the records' numbers, person by person.

    >>> [part.tolist() for part in _grouped(np.array([8, 3, 8]))]
    [[0, 2, 3], [0, 2, 1]]
    """
    _, first, which, lengths = np.unique(users, return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first)  # people by their first record
    records = np.argsort(first[which], kind="stable")
    return np.concatenate([[0], np.cumsum(lengths[order])]), records
