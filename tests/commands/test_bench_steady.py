"""The benchmark of LazyDP starts where a long run would be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dprec.benchmarks.table_steps import LongRunning, LookUps, Pooled, Step
from dprec.models.clicks import FeatureTables
from dprec.sparsity import LazyDP

pytestmark = pytest.mark.full

LOOK_UPS = LookUps(records=150, tables=2, ids=300, hot=0.3)


def step(system: str) -> Step:
    torch.manual_seed(0)
    ids = [LOOK_UPS.ids] * LOOK_UPS.tables
    return Step(system, Pooled(FeatureTables(ids, [3] * LOOK_UPS.tables), ids), LOOK_UPS)


def owed(strategy: LazyDP) -> Tensor:
    """Return how many steps' noise each row of both tables owes, without padding."""
    return torch.cat([lazy.now - lazy.settled[1:] for lazy in strategy._tables.values()]).double()


def test_rows_wait_from_the_start_as_they_do_after_many_steps() -> None:
    """After 150 steps of the real thing rows owe what they were made to owe before the first: its law stays."""
    run = step("LazyDP")
    run.fetch()
    (strategy,) = run.rules.strategies
    assert isinstance(strategy, LongRunning)
    before = owed(strategy)
    for lazy in strategy._tables.values():
        lazy.settled.fill_(lazy.now)  # as at a start without a past
    for _ in range(150):
        run()
        run.fetch()
    after, often = owed(strategy), torch.arange(600) % 300 < 90
    for rows in (often, ~often):
        assert before[rows].mean() == pytest.approx(float(after[rows].mean()), rel=0.25, abs=0.2)
        assert before[rows].quantile(0.9) == pytest.approx(float(after[rows].quantile(0.9)), rel=0.3, abs=1)
    assert after[~often].mean() > 5 * after[often].mean()
