"""Side by side: every round gives each system a turn, so that whatever else the machine does hits all alike.

With one thread, seconds are those of the processor: a clock's, where nothing else is at work. With more they are the
clock's, and nothing else must be at work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

Step = Callable[[], object]  # with a method `fetch`, if it gets ready in time that does not count


def race(
    steps: Mapping[str, Step], rounds: int, turn: int = 2, say: Callable[[str], None] = lambda _: None
) -> dict[str, list[float]]:
    """Return for each system the seconds of its fastest step in each round.

    A turn is two steps: the first finds the caches full of another system's data. Where steps take minutes, one says
    enough, and nothing is tried out before the first round either. The order within a round is drawn anew each time.
    """
    order = np.random.default_rng(0)
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for step in steps.values() if turn > 1 else ():
        _seconds(step)
    for number in range(rounds):
        for name in (names[place] for place in order.permutation(len(names))):
            say(f"round {number + 1} of {rounds}: {name}")
            seconds[name].append(min(_seconds(steps[name]) for _ in range(turn)))
    return seconds


def against(seconds: list[float], base: list[float]) -> tuple[float, list[float]]:
    """Return the median of the rounds' ratios and their interquartile range.

    >>> against([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    (2.0, [2.0, 2.5])
    """
    low, middle, high = np.quantile(np.array(seconds) / np.array(base), [0.25, 0.5, 0.75]).tolist()
    return middle, [low, high]


def _seconds(step: Step) -> float:
    if hasattr(step, "fetch"):
        step.fetch()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    step()
    return clock() - begin
