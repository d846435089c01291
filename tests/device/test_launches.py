"""What a step costs in launches and waits on a card's path: the time of a card that is faster than Python."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.device.pretend import Count, counted, interpreted
from tests.device.steps import Steps
from tests.kernels.interpreter import INTERPRETED, outside, passes_in_the_interpreter

# Launches and waits of a private step, optimizer included, that it must not go beyond, and launches of a plain one.
MOST = {"dpformer": (460, 1, 130), "dlrm, lazydp": (1800, 2, 200), "pctr, adafest": (1850, 3, 190)}

inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's own process")


@outside
def test_steps_are_few_launches() -> None:
    passes_in_the_interpreter(str(Path(__file__)))


def cost(name: str, users: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Count, Count]:
    """Return what the third step costs, private and plain: the first ones make what is kept."""
    steps = Steps(name, users)
    # Tests fill fresh memory with NaN, by launches that no run has.
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
    with interpreted():
        for seed in range(2):
            steps.take_private(steps.batch_of(seed))
            steps.take_plain(steps.batch_of(seed))
        batch = steps.batch_of(2)
        return counted(lambda: steps.take_private(batch)), counted(lambda: steps.take_plain(batch))


@inside
@pytest.mark.parametrize("name", MOST)
def test_launches_and_waits_do_not_grow(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    private, plain = cost(name, 12, monkeypatch)
    launches, waits, without = MOST[name]
    assert private.launches <= launches
    assert private.syncs <= waits
    assert plain.launches <= without


@inside
def test_none_is_a_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products are added up 64 rows at a time, and the rest: a few launches more or less."""
    few, many = cost("dpformer", 12, monkeypatch)[0], cost("dpformer", 70, monkeypatch)[0]
    assert many.launches <= few.launches + 12
    assert many.syncs <= few.syncs + 1
