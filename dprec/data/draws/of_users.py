"""What is drawn for a user of a step, whoever else is in it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import numpy as np

_TARGETS = 0x746172676574  # keeps these draws apart from others of the same seed


class DrawsOfUsers:
    """Generators of random numbers, each a function of a key, the step and the user's number.

    The key comes from the operating system, or from `seed`; `stream` keeps its numbers apart from others of the seed.

    >>> draws = DrawsOfUsers(seed=1, stream=2)
    >>> draws.of(3, step=4).random() == draws.of(3, step=4).random()
    True
    """

    def __init__(self, seed: int | None, stream: int) -> None:
        self._seeded = seed is not None
        self._key = (
            _halves(secrets.randbits(128))
            if seed is None
            else np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(2, np.uint64)
        )

    def draw_by(self, key: int) -> None:
        """Take another key of 128 bits, unless a seed gave one: several processes share it."""
        if not self._seeded:
            self._key = _halves(key)

    def of(self, user: int, step: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, user, step]))


def _halves(key: int) -> np.ndarray:
    return np.array([key >> 64, key & (1 << 64) - 1], dtype=np.uint64)


class OneTarget:
    """Draws, for a user of a step, one of the events that have an event before them, each equally likely.

    The draw is a function of a key, the step and the user's number. So it is the same whenever a step's batch is made
    again, and nobody else's history changes its law.

    >>> one = OneTarget(seed=1, step=lambda: 5)
    >>> place, only = one([3, 3], [9, 1]).tolist()
    >>> 0 <= place < 9, only, one([3], [9]).tolist() == [place]
    (True, 0, True)
    """

    def __init__(self, seed: int | None, step: Callable[[], int]) -> None:
        self.draws = DrawsOfUsers(seed, _TARGETS)
        self._step = step

    def __call__(self, users: Sequence[int] | np.ndarray, transitions: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return (B,) which of each user's transitions is drawn, from 0; 0 where there is none."""
        step = self._step()
        drawn = [self.draws.of(int(user), step).random() for user in users]
        counts = np.maximum(np.asarray(transitions, dtype=np.int64), 1)
        return np.minimum((np.array(drawn) * counts).astype(np.int64), counts - 1)
