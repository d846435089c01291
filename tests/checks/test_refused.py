"""Optimizers that cannot be stepped once a batch, and modules whose uses nobody sees: one line with the reason."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.optim import SGD

from dprec import private
from dprec.errors import UserError
from dprec.sparsity import LazyDP
from tests.checks.test_loading import Bag, one, train
from tests.training.scripts import take


class With(Bag):
    def __init__(self, out: nn.Module) -> None:
        super().__init__()
        self.out = out  # type: ignore[assignment]


class TwoTables(nn.Module):
    """Reads a table, and beside it what `kind` says."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, rows = kind, torch.randn(8, 4)
        self.table, self.other = nn.Embedding(6, 4), nn.Embedding(6, 4)
        if kind == "overlapping":
            self.table.weight, self.other.weight = nn.Parameter(rows[:6]), nn.Parameter(rows[2:])
        elif kind == "apart":
            self.table.weight, self.other.weight = nn.Parameter(rows[:4]), nn.Parameter(rows[4:])
        elif kind == "tied":
            self.other.weight = self.table.weight
        elif kind == "buffer":
            self.register_buffer("again", self.table.weight.data)
        elif kind == "list":
            self.again = [self.table.weight.detach()]

    def losses(self, ids: Tensor) -> Tensor:
        again = self.again[0] if self.kind == "list" else self.again if self.kind == "buffer" else self.other.weight
        return (self.table(ids[:, 0]) * again[ids[:, 1]]).sum(1)


@pytest.mark.parametrize("strategy", [None, LazyDP])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("overlapping", "parameters 'table.weight' and 'other.weight' share memory"),
        ("buffer", "'again' shares memory with table 'table.weight'"),
        ("list", "'again' shares memory with table 'table.weight'"),
        ("apart", ""),
        ("tied", ""),
    ],
)
def test_memory_under_two_names_is_refused(kind: str, said: str, strategy: Any) -> None:
    """A row would move twice a step, and under LazyDP be read while it owes noise."""
    torch.manual_seed(0)
    model = TwoTables(kind)
    run = private(
        model, SGD(model.parameters(), lr=0.1), torch.randint(4, (40, 2)), noise_multiplier=1.0, expected_batch=9,
        steps=2, verify=0.0, sparsity=strategy and strategy(),
    )  # fmt: skip
    refused = said and (strategy is not None or kind == "overlapping")
    with pytest.raises(UserError, match=said) if refused else nullcontext():
        take(run)


def test_the_way_out_that_is_named_trains() -> None:
    assert train(With(parametrizations.weight_norm(nn.Linear(4, 1))), one).steps == 4


@pytest.mark.parametrize("dim", [0, None])
def test_a_table_whose_weight_is_computed_has_no_padding_row_and_trains(dim: int | None) -> None:
    model = Bag()
    with torch.no_grad():
        model.table.weight[0] = 1.0  # a norm of 0 has no direction
    model.table = parametrizations.weight_norm(model.table, dim=dim)
    assert train(model, one).steps == 4


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (lambda: nn.LazyLinear(1), "parameter 'weight' has no size yet: call the model on a batch first"),
        (lambda: nn.Sequential(nn.Linear(4, 0), nn.Linear(0, 1)), r"parameter '0.weight' has no elements, \(0, 4\)"),
        (lambda: Times(torch.zeros(1).expand(4)), "parameter 'p' has several elements in one place in memory"),
        (lambda: Times(torch.zeros(4, dtype=torch.cfloat)), "parameter 'p' is complex"),
    ],
)
def test_parameters_that_no_step_can_move_are_refused(module: Any, said: str) -> None:
    model = module()
    with pytest.raises(UserError, match=said):
        private(
            model, SGD(model.parameters(), lr=0.1), torch.randn(20, 4), losses=lambda x: model(x).sum(1),
            noise_multiplier=1.0, expected_batch=5, steps=1,
        )  # fmt: skip


class Times(nn.Module):
    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.p = nn.Parameter(values)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.p
