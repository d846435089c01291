"""Steps that float32 does not hold beside a table's weights: what is rounded before its noise could be seen."""

from __future__ import annotations

import warnings
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dprec.sparsity import Dense, LazyDP
from tests.training.scripts import descending, take

USERS, WIDTH, ROW = 300, 512, 3


def trained(strategy: Any, rate: float, last: float, sigma: float = 5.0, verify: float = 0.0) -> Tensor:
    """A row that all users read, of weights from 1 to 2, after a few steps; the last user may have no gradient."""
    torch.manual_seed(0)
    table, towards, counts = nn.Embedding(5, WIDTH), torch.linspace(-1, 1, WIDTH), torch.ones(USERS)
    with torch.no_grad():
        table.weight.copy_(1 + torch.rand(5, WIDTH))
    counts[-1] = last
    users = TensorDataset(torch.full((USERS,), ROW), counts)
    options: Any = {"noise_multiplier": sigma, "expected_batch": USERS, "sparsity": [strategy()], "verify": verify}
    take(descending(table, users, lambda batch: (table(batch[0]) @ towards) * batch[1], 10, rate, **options))
    return table.state_dict()["weight"][ROW].clone()


def apart(some: list[Tensor]) -> list[int]:
    return [int((one != other).sum()) for one, other in combinations(some, 2)]


@pytest.mark.parametrize("strategy", [Dense, lambda: LazyDP(aggregate=False)], ids=["dense", "replayed"])
def test_noise_is_added_before_a_row_is_rounded(strategy: Any) -> None:
    """At this rate noise is below half of what float32 distinguishes there; alone it would move no weight.

    Replayed noise needs nothing left out, whether or not somebody reads a row.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_last, without = ([trained(strategy, 1e-6, last) for _ in range(2)] for last in (1.0, 0.0))
    alike = apart(with_last) + apart(without)
    across = [int((one != other).sum()) for one, other in product(with_last, without)]
    assert min(alike) > WIDTH / 20  # noise is seen
    assert min(across) < 1.5 * max(alike)


def test_a_step_too_small_for_float32_leaves_lazy_tables_as_they_are() -> None:
    """The more often a row is read the more of such noise it would lose, which would show who reads it."""
    with pytest.warns(UserWarning, match="LazyDP: at a learning rate of 1e-06 a step is too small for float32") as told:
        rows = [trained(LazyDP, 1e-6, last) for last in (1.0, 0.0)]
    assert len([each for each in told if "too small" in str(each.message)]) == 2  # once a run
    assert apart(rows) == [0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert apart([trained(LazyDP, 1e-1, 1.0) for _ in range(2)])[0] > 0.9 * WIDTH


def test_a_gradient_is_rounded_to_a_lazy_row_with_its_noise() -> None:
    """Rows that a step reads have their noise right after it; the others wait."""
    table = nn.Embedding(9, 64)
    users, options = TensorDataset(torch.tensor([[3, 5]] * 20)), {"expected_batch": 20, "verify": 0.0}
    training = descending(
        table, users, lambda batch: 0 * table(batch[0]).sum((1, 2)), 2, sparsity=[LazyDP()], **options
    )
    before = table.weight.detach().clone()
    training.step(next(iter(training)))
    moved = (table.weight.detach() - before).double()
    assert moved.any(1).nonzero().squeeze(1).tolist() == [3, 5]
    assert 0.7 < float(moved[[3, 5]].std()) / (0.5 / 20) < 1.4
