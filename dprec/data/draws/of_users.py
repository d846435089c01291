"""What is drawn for a user of a step, whoever else is in it."""

from __future__ import annotations

import secrets

import numpy as np


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
