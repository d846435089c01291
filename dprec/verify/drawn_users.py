"""The users that the sampler drew for the current step, and the batches that the data makes of some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dprec.checks.entropy import Streams
from dprec.checks.loading import same_numbers

READINGS = 64  # how often the same users are read again before data counts as not random


class DrawnUsers:
    """The users of the current step. `made` makes micro-batches of any users; it may draw from `streams`."""

    def __init__(self, made: Callable[[Sequence[int]], list[Any]], streams: Streams) -> None:
        self._made, self.streams = made, streams
        self.random = False  # whether reading the data draws random numbers
        self.users: Sequence[int] = ()

    def begin(self, users: Sequence[int]) -> None:
        """Set the users of the current step."""
        self.users = users

    def parts(self, users: Sequence[int]) -> list[Any]:
        """Return the micro-batches of these users alone; generators keep their states."""
        with self.streams.kept():
            return [part for part in self._made(users) if len(part)] if users else []

    def at_random(self, readings: int = 1) -> bool:
        """Whether reading the step's users again gives other data; once True, it stays True."""
        with self.streams.kept():
            first = [] if self.random else self._made(self.users)
            for _ in range(0 if self.random else readings):
                self.streams.reseed()
                self.random = self.random or not same_numbers(first, self._made(self.users))
        return self.random
