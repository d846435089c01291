"""When a run checks itself: at random steps, for a set share of its time."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

SKIPPED = 4  # of the steps that could pay for a check, one in so many is checked: nobody knows which


class SpareTime:
    """Says which steps to check, by chance, such that checks take at most `share` of the steps' time.

    What is random comes from the operating system, never from a seed.

    >>> always, never = SpareTime(1.0), SpareTime(0.0)
    >>> [always.due() for _ in range(3)], [never.due() for _ in range(3)]
    ([True, True, True], [False, False, False])
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.worked = 0.0  # seconds in steps
        self.spent = 0.0  # seconds in checks

    def due(self) -> bool:
        """Whether to check this step."""
        if self.share in (0, 1):
            return self.share > 0
        return self.spent <= self.share * self.worked and secrets.randbelow(SKIPPED) == 0

    def start(self) -> None:
        """Begin a step."""
        self._at, self._of_this = perf_counter(), 0.0

    @contextmanager
    def check(self) -> Iterator[None]:
        """Count the time within as a check's."""
        begun = perf_counter()
        try:
            yield
        finally:
            seconds = perf_counter() - begun
            self.spent += seconds
            self._of_this += seconds

    def stop(self) -> None:
        """End a step."""
        self.worked += perf_counter() - self._at - self._of_this
