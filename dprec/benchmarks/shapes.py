"""Invented users of a given shape: only the number of items and the lengths of histories determine the cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprec.data import SequenceBatch
from dprec.data.draws.buckets import Buckets
from dprec.data.selection.packing import padded

SEED = 11


@dataclass(frozen=True)
class Shape:
    """A catalogue and users whose history lengths are log-normal, cut to [shortest, longest].

    >>> shape = Shape("small", items=50, users=6, tokens=40, median=5, spread=1.0, shortest=2, longest=20)
    >>> [tuple(part.history.shape) for part in shape.micro_batches()]
    [(2, 20), (2, 20), (2, 20)]
    """

    name: str
    items: int  # without the padding
    users: int  # in one step
    tokens: int  # budget of a micro-batch: users x longest history
    median: float
    spread: float
    shortest: int
    longest: int

    @property
    def ids(self) -> int:
        """Item ids, the padding included."""
        return self.items + 1

    def lengths(self) -> np.ndarray:
        drawn = np.random.default_rng(SEED).lognormal(np.log(self.median), self.spread, self.users)
        return np.clip(drawn.round().astype(np.int64), self.shortest, self.longest)

    def micro_batches(self) -> list[SequenceBatch]:
        """One step's users in dprec's micro-batches, longest first; every system gets the same."""
        return self._batches(self.lengths(), self.tokens)

    def check_batch(self) -> SequenceBatch:
        """A few users with histories of very different length."""
        middle = int(np.median(self.lengths()))
        lengths = np.array([self.longest, middle, self.shortest, 1])
        return self._batches(lengths, len(lengths) * self.longest)[0]

    def _batches(self, lengths: np.ndarray, tokens: int) -> list[SequenceBatch]:
        starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
        items = self._items(int((lengths + 1).sum()))
        groups = Buckets(len(lengths), self.longest).groups(lengths, tokens)
        return [
            SequenceBatch(*(padded(items, first[rows], lengths[rows], width).long() for first in (starts, starts + 1)))
            for rows, width in groups
        ]

    def _items(self, count: int) -> np.ndarray:
        """Item ids with a popularity as uneven as in logs."""
        chance = 1 / (np.arange(self.items) + 0.02 * self.items + 1)
        return 1 + np.random.default_rng(SEED + 1).choice(self.items, size=count, p=chance / chance.sum())
