"""The kernels for all parameters at once against the reference, interpreted everywhere and compiled on a GPU."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch

from dprec_kernels.joint import Law, Measure, Positions, Products, Softmaxes, Vectors, reference
from tests.kernels.interpreter import DEVICES

pytestmark = pytest.mark.full

USERS = 5
PART = 4 * torch.finfo(torch.float32).eps


def products(length: int, outputs: int, inputs: int, device: str) -> Products:
    return Products(
        torch.randn(USERS, length, outputs, device=device), torch.randn(USERS, length, inputs, device=device)
    )


def positions(length: int, width: int, device: str, factors: bool = True) -> Positions:
    each = torch.randn(2, USERS, length, width, device=device)
    return Positions(each[0], each[1] if factors else None)


def softmaxes(length: int, device: str) -> Softmaxes:
    target = torch.randint(0, 3, (USERS, length))
    log_total = torch.randn(USERS, length) * 1e6
    log_total[target == 0] = math.inf
    given = torch.randn(USERS, length, 7), torch.randn(USERS, length), log_total, torch.rand(USERS, length), target
    return Softmaxes(*(each.to(device) for each in given), padding=0, items=11)


@pytest.mark.parametrize("device", DEVICES)
def test_norms_and_lengths_are_those_of_the_reference(kernels: ModuleType, device: str) -> None:
    torch.manual_seed(1)
    known, off = (torch.rand(USERS, dtype=torch.float64, device=device) for _ in range(2))
    measures = [
        Measure([products(1, 3, 70, device)]),
        Measure([Vectors(torch.randn(USERS, 1, 150, device=device))], rounds=False),
        Measure([softmaxes(40, device), Vectors(torch.randn(USERS, 3, 7, device=device))], known),
        Measure(squared=known, off=off),
        Measure([products(35, 100, 2, device)]),
        Measure([Vectors(torch.randn(USERS, 1, 5, device=device))]),
        Measure([positions(35, 70, device)]),
        Measure([positions(3, 5, device, factors=False)]),
    ]
    like = torch.zeros(USERS, device=device)
    exact, found = (path.measured(measures, like, PART) for path in (reference, kernels))
    assert torch.allclose(found[0], exact[0], rtol=2e-6)
    assert torch.allclose(found[1], exact[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", [reference.FLAT, reference.AUTO_V, reference.AUTO_S])
def test_scales_are_those_of_the_reference(kernels: ModuleType, mode: int, device: str) -> None:
    numbers = [[4.0, 0.0, 1e-20, 1e80, math.nan], [9.0, 0.0, 0.0, 1.0, 1.0], [1e9] * 5]
    squared = torch.tensor(numbers, dtype=torch.float64, device=device)
    off = torch.tensor([[0.5, 0.0, 0.0, 0.0, 0.0], [0.0] * 5, [1e-9, 0.0, 1e-9, 0.0, 1.0]], device=device).double()
    losses = torch.arange(5.0, device=device)
    law = Law(mode, 0.7 * (1 - 3e-6), 1e-6, 1e-2, 6e4, 1e30)
    exact, found = (path.scaled(squared, off, 2, losses, law) for path in (reference, kernels))
    for one, other in zip(exact, found, strict=True):
        assert torch.allclose(other, one, rtol=1e-14, atol=0, equal_nan=True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("apart", [1, 3])
def test_sums_are_those_of_the_reference(
    kernels: ModuleType, apart: int, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(kernels, "EACH", -(-USERS // apart))
    torch.manual_seed(1)
    vectors = Vectors(torch.randn(USERS, 1, 150, device=device))
    terms = [products(1, 3, 70, device), vectors, products(35, 100, 2, device)]
    terms += [positions(35, 70, device), positions(3, 5, device, factors=False)]
    weight = torch.rand(USERS, device=device)
    for exact, found in zip(*(path.sums(terms, weight) for path in (reference, kernels)), strict=True):
        assert torch.allclose(found, exact, rtol=1e-5, atol=1e-5)
