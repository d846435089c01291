"""When descent stops: on sequences made by hand, in expectation, and by the ledger."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprec.convex.debiasing import (
    TruncatedGeometric,
    ledger_of,
    steps_within_filter,
    steps_within_ledger,
)


def brute_force(levels: list[int], n: int, epsilon: float, delta: float) -> int:
    """The rule of the paper, a step at a time, with its own constants."""
    squares = total = 0.0
    for step, level in enumerate(levels):
        share = (3 * 2 ** (level + 1) + 1) / (16 * n)
        squares, total = squares + share**2, total + share
        spent = epsilon * math.sqrt(2 * math.log(4 / delta) * squares) + epsilon**2 / 2 * squares
        if epsilon / 2 < spent or delta / 4 < delta * total:
            return step
    return len(levels)


@pytest.mark.parametrize(
    "levels",
    [[0] * 500, [3] * 100, [5, *[0] * 400], [*[0] * 20, 5, *[0] * 400], [5, 5, 5], [0, 1, 2, 3, 4, 5] * 50, [0]],
)
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-4), (0.3, 1e-9), (1.0, 0.1)])
def test_the_rule_on_sequences_made_by_hand(levels: list[int], epsilon: float, delta: float) -> None:
    assert steps_within_filter(levels, 64, epsilon, delta) == brute_force(levels, 64, epsilon, delta)


@pytest.mark.full
@pytest.mark.parametrize("multiplier", [2.0])
def test_the_ledger_allows_one_step_no_more(multiplier: float) -> None:
    n, epsilon, delta = 1024, 1.0, 1e-5
    levels = TruncatedGeometric.of(n).draw(np.random.default_rng(1), 1_000).tolist()
    steps = steps_within_ledger(levels, n, multiplier, epsilon, delta)
    assert 0 < steps < 1_000
    assert ledger_of(levels[:steps], n, multiplier).epsilon(delta) <= epsilon
    assert ledger_of(levels[: steps + 1], n, multiplier).epsilon(delta) > epsilon * (1 - 1e-3)


def test_the_ledger_has_two_events_a_step() -> None:
    ledger = ledger_of([0, 0, 2], 64, 2.0)
    assert {(event.rate, count) for event, count in ledger.events.items()} == {(2 / 64, 2), (8 / 64, 1), (1 / 64, 3)}
