"""Times systems side by side: every round gives each a turn, so other load on the machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

LEAST, MOST = 2, 20  # steps in a turn


def race(
    steps: Mapping[str, Callable[[], object]], rounds: int, turn: float, say: Callable[[str], None] = lambda _: None
) -> dict[str, list[float]]:
    """Return for each system the seconds of its fastest step in each round.

    A turn lasts `turn` seconds or two steps, whichever is longer, because in the first step of a turn the caches hold
    another system's data. Each round has a random order.
    """
    order = np.random.default_rng(0)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for number in range(rounds):
        for name in order.permutation(list(steps)):
            say(f"round {number + 1} of {rounds}: {name}")
            seconds[name].append(_fastest(steps[name], turn))
    return seconds


def against(seconds: list[float], base: list[float]) -> tuple[float, list[float]]:
    """Return the median of the rounds' ratios and their interquartile range.

    >>> against([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    (2.0, [2.0, 2.5])
    """
    low, middle, high = np.quantile(np.array(seconds) / np.array(base), [0.25, 0.5, 0.75]).tolist()
    return middle, [low, high]


def _fastest(step: Callable[[], object], turn: float) -> float:
    taken: list[float] = []
    while len(taken) < LEAST or (sum(taken) < turn and len(taken) < MOST):
        begin = time.perf_counter()
        step()
        taken.append(time.perf_counter() - begin)
    return min(taken)
