"""What follows from the batch by a way that leaves no layout is refused before the first step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec import private
from dprec.errors import UncoveredUse

with warnings.catch_warnings():
    warnings.simplefilter("ignore")

    @torch.jit.script
    def scripted(y: Tensor) -> Tensor:
        return 1 / y.abs().max().clamp(min=100)


def bounded(y: Tensor) -> Tensor:
    """Of rows below 100, which the probe meets, 1 for all users."""
    return 1 / y.abs().max().clamp(min=100)


def by_other_memory(of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def scale(y: Tensor) -> Tensor:
        buffer = torch.zeros(y.shape)
        other = of(buffer)
        buffer.copy_(y)
        return bounded(other)

    return scale


UNSEEN: dict[str, Callable[[Tensor], Any]] = {
    "jit": scripted,
    "torch.Tensor": lambda y: bounded(torch.Tensor(y)),
    "nn.Parameter": lambda y: bounded(nn.Parameter(y, requires_grad=False)),
    "memory": lambda y: bounded(torch.empty(0).set_(y)),  # type: ignore[call-overload]
}
SEEN: dict[str, Callable[[Tensor], Any]] = {
    "nothing": lambda y: 1.0,
    "zeros of this type": lambda y: y.new_zeros(y.shape[1]) + 1,
    "ones alike": torch.ones_like,
    "a buffer": lambda y: torch.zeros(len(y), 2).copy_(y[:, :2]).tanh().sum(1, keepdim=True),
    "a column of a buffer": lambda y: _column(y),
    "random": lambda y: torch.rand_like(y) * 0 + 1,
    "a range": lambda y: torch.arange(y.shape[1], device=y.device).type_as(y),
}


def _column(y: Tensor) -> Tensor:
    buffer = torch.zeros(len(y), 2)
    buffer[:, 0] = y[:, 0]
    buffer[:, 1].copy_(y[:, 1])
    return buffer.sum(1, keepdim=True)


def train(scale: Callable[[Tensor], Any]) -> int:
    torch.manual_seed(0)
    layer, data = nn.Linear(4, 3), torch.randn(50, 4)

    def losses(batch: Tensor) -> Tensor:
        y = layer(batch)
        return (y * scale(y.detach())).square().sum(1)

    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    run = private(
        layer, optimizer, data, losses=losses, noise_multiplier=1.0, delta=1e-3, expected_batch=10, steps=2, verify=0.0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nobody is taken alone
        for batch in run:
            run.step(batch)
    return run.steps


@pytest.mark.parametrize("way", UNSEEN)
def test_what_no_tape_sees_is_refused(way: str) -> None:
    with pytest.raises(
        UncoveredUse, match=r"^losses\(batch\) gives \w+ a tensor that follows .* something else than torch's"
    ):
        train(UNSEEN[way])


@pytest.mark.parametrize("way", SEEN)
def test_what_it_sees_is_not(way: str) -> None:
    assert train(SEEN[way]) == 2
