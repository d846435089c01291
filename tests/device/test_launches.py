"""What a step costs in launches and waits on a GPU's path: the time of a GPU that is faster than Python."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from tests.device.pretend import Count, counted, interpreted
from tests.device.steps import TABLES, Steps

# Launches and waits of a private step, optimizer included, that it must not go beyond, and launches of a plain one.
MOST = {"dpformer": (144, 1, 98), "dlrm, lazydp": (194, 2, 148), "pctr, adafest": (177, 2, 133)}
FEW, MORE = 6, 9  # tables that are counted: what each adds is the same


@pytest.fixture(autouse=True)
def _poison() -> None:
    """Leave fresh memory as it is: other tests fill it with NaN, by launches that no run has."""


@cache
def cost(name: str, users: int = 12, tables: int = FEW) -> tuple[Count, Count]:
    """Return what the third step costs, private and plain: the first ones make what is kept."""
    torch.manual_seed(1)
    steps = Steps(name, users, tables)
    with pytest.MonkeyPatch.context() as patch, interpreted():
        patch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
        for seed in range(2):
            steps.take_private(steps.batch_of(seed))
            steps.take_plain(steps.batch_of(seed))
        batch = steps.batch_of(2)
        return counted(lambda: steps.take_private(batch)), counted(lambda: steps.take_plain(batch))


@pytest.mark.full
@pytest.mark.interpreted
@pytest.mark.parametrize("name", MOST)
def test_launches_and_waits_do_not_grow(name: str) -> None:
    few = cost(name)
    private, plain = few[0].launches, few[1].launches
    if name != "dpformer":  # which has no tables
        more = cost(name, tables=MORE)
        others = (TABLES - FEW) / (MORE - FEW)
        private, plain = (a.launches + (b.launches - a.launches) * others for a, b in zip(few, more, strict=True))
        assert few[0].syncs == more[0].syncs  # none is a table's
    launches, waits, without = MOST[name]
    assert private <= launches
    assert private <= 1.5 * plain
    assert few[0].syncs <= waits
    assert plain <= without


@pytest.mark.full
@pytest.mark.interpreted
def test_none_is_a_users() -> None:
    """Products are added up 64 rows at a time, and the rest: a few launches more or less."""
    few, many = cost("dpformer")[0], cost("dpformer", 70)[0]
    assert many.launches <= few.launches + 12
    assert many.syncs <= few.syncs + 1
