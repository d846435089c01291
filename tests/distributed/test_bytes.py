"""What a process gives to the others in a step: dense sums once, of ruled tables the rows that the batch touched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.distributed.ranks import Ranks
from dprec.gradients.clipping import Clipping
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity import AdaFEST, LazyDP
from dprec.sparsity.rows.table_strategies import TableStrategies

pytestmark = pytest.mark.full

WIDTH = 8
DENSE = WIDTH + 1  # numbers of the linear layer


class Counted(Ranks):
    """The first of two processes, of which the other gives nothing; counts what this one gives."""

    size = 2

    def __init__(self) -> None:
        self.added_up = self.gave = 0

    def sum_(self, tensor: Tensor) -> None:
        self.added_up += tensor.numel() * tensor.element_size()

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        self.gave += tensor.numel() * tensor.element_size()
        return [tensor]


class Twins(Counted):
    """The other process gives the same."""

    calls = 0

    def sum_(self, tensor: Tensor) -> None:
        self.calls += 1
        tensor.mul_(2)


def test_small_tensors_are_added_up_in_one_call(monkeypatch: Any) -> None:
    monkeypatch.setattr("dprec.distributed.ranks.TOGETHER", 20)
    shapes = [(0, 7), (3, 4), (), (2,), (0,), (5, 5), (4,), (6,)]
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes] + [torch.randn(4, 3).T]
    before, ranks = [tensor.clone() for tensor in tensors], Twins()
    ranks.sum_all_(tensors)
    assert all(map(torch.equal, tensors, [2 * tensor for tensor in before]))
    assert ranks.calls == 4  # of 15 numbers, 25, 10, and 12 of another type


class OneTable(nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(rows, WIDTH), nn.Linear(WIDTH, 1)

    def losses(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids)).squeeze(1).square()


def counted(strategy: Any, rows: int, touched: int) -> Counted:
    """Take a step of users who read one row each, all of them different."""
    model, ranks, noise = OneTable(rows), Counted(), GaussianNoise(1)
    noise.join(ranks)
    strategies, step_noise = TableStrategies([strategy]), StepNoise(noise, 1.0, touched)
    parameters = dict(model.named_parameters())
    strategies.begin(model, parameters, step_noise, 1.0)
    strategies.guard(model, torch.optim.SGD(model.parameters(), lr=0.1), 0)
    ranks.gave = 0  # before the first step LazyDP tells once how large weights are
    gradient = PrivateGradient(Clipping("flat", 1.0), step_noise, strategies=strategies)
    gradient(parameters, model.losses, [torch.arange(touched)])
    return ranks


@pytest.mark.parametrize("rows", [1_000, 100_000])
@pytest.mark.parametrize("touched", [50, 100])
def test_lazydp_gives_each_touched_row_once(rows: int, touched: int) -> None:
    ranks = counted(LazyDP(aggregate=False), rows, touched)
    assert ranks.gave == touched * (8 + 4 * WIDTH)  # its number, and its sums in float32
    assert ranks.added_up == 8 * DENSE


@pytest.mark.parametrize("rows", [1_000, 100_000])
@pytest.mark.parametrize("touched", [50, 100])
def test_adafest_gives_what_it_chooses_by_besides(rows: int, touched: int) -> None:
    """Who reads which row, and how many they are; the threshold lets all touched rows stay."""
    ranks = counted(AdaFEST(threshold=-1000.0), rows, touched)
    assert ranks.gave == touched * (8 + 4 * WIDTH) + touched * (8 + 8) + 8
    assert ranks.added_up == 8 * DENSE
