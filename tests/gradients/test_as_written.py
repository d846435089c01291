"""A compiled model trains as it is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec import private
from dprec.gradients.clipping import Clipping
from dprec.gradients.uses.as_written import AsWritten
from tests.one_micro_batch import clipped_sums, distance


class Scaled(nn.Module):
    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.layer, self.mixes = nn.Linear(4, 3), mixes

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return (y / y.abs().max() if self.mixes else y.tanh()).square().sum(1)


def compiled(mixes: bool = False) -> Any:
    torch.manual_seed(0)
    return torch.compile(Scaled(mixes), backend="eager")


def clipped(model: Any, x: Tensor) -> dict[str, Tensor]:
    return clipped_sums(model, [x], Clipping("flat", 0.1), model)


def batch() -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def test_its_sum_is_that_of_the_model_as_written() -> None:
    model = compiled()
    model(batch())  # is compiled by now
    assert all(map(torch.equal, clipped(model, batch()).values(), clipped(model._orig_mod, batch()).values()))


@pytest.mark.filterwarnings("ignore:.*taken alone")
def test_it_stays_so_until_the_last_is_left() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise RuntimeError

    sine = torch.compile(torch.sin, backend=backend)
    mode = AsWritten()
    with mode:
        with mode:
            pass
        assert not sine(torch.zeros(1))


def test_users_whom_it_mixes_are_taken_one_by_one() -> None:
    model, x = compiled(mixes=True), batch()
    model(x)
    x[2] *= 50
    assert distance(clipped(model, x), clipped(model, torch.cat([x[:2], x[3:]]))) <= 0.1 + 1e-6


def test_it_trains_and_is_compiled_again_afterwards() -> None:
    runs = []

    def backend(graph: Any, inputs: Any) -> Any:
        def compiled(*args: Any) -> Any:
            runs.append(1)
            return graph(*args)

        return compiled

    torch._dynamo.reset()
    model: Any = torch.compile(Scaled(), backend=backend)
    model(batch())
    assert len(runs) == 1
    run = private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(40, 4), losses=model, noise_multiplier=1.0,
        expected_batch=10, steps=3, verify=1.0,
    )  # fmt: skip
    for part in run:
        run.step(part)
    assert run.steps == 3
    assert len(runs) == 1
    model(batch())
    assert len(runs) == 2
