"""Side by side: every round gives each system a turn, so that whatever else the machine does hits all alike.

With one thread, seconds are those of the processor: a clock's, where nothing else is at work. With more they are the
clock's, and nothing else must be at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol, TypeVar

import numpy as np
import torch

LEAST, MOST = 2, 20  # steps in a turn
Name = TypeVar("Name", bound=Hashable)


class Fetched(Protocol):
    """A step that gets ready for itself in time that does not count."""

    def fetch(self) -> None: ...

    def __call__(self) -> object: ...


def race(
    steps: Mapping[Name, Callable[[], object] | Fetched],
    rounds: int,
    turn: float,
    say: Callable[[str], None] = lambda _: None,
    least: int = LEAST,
) -> dict[Name, list[float]]:
    """Return for each system the seconds of its fastest step in each round.

    A turn lasts `turn` seconds or two steps, whichever is longer: the first step of a turn finds the caches full
    of another system's data. The order within a round is drawn anew each time. Where steps take minutes, `least` says
    that a turn is fewer; with one, nothing is tried out before the first round either.
    """
    order = np.random.default_rng(0)
    names = list(steps)
    seconds: dict[Name, list[float]] = {name: [] for name in names}
    for step in steps.values() if least > 1 else ():
        _seconds(step)
    for number in range(rounds):
        for name in (names[place] for place in order.permutation(len(names))):
            say(f"round {number + 1} of {rounds}: {name}")
            seconds[name].append(_fastest(steps[name], turn, least))
    return seconds


def against(seconds: list[float], base: list[float]) -> tuple[float, list[float]]:
    """Return the median of the rounds' ratios and their interquartile range.

    >>> against([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    (2.0, [2.0, 2.5])
    """
    low, middle, high = np.quantile(np.array(seconds) / np.array(base), [0.25, 0.5, 0.75]).tolist()
    return middle, [low, high]


def _fastest(step: Callable[[], object] | Fetched, turn: float, least: int) -> float:
    taken: list[float] = []
    while len(taken) < least or (sum(taken) < turn and len(taken) < MOST):
        taken.append(_seconds(step))
    return min(taken)


def _seconds(step: Callable[[], object] | Fetched) -> float:
    if hasattr(step, "fetch"):
        step.fetch()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    step()
    return clock() - begin
