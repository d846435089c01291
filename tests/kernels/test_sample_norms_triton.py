"""The kernels against the reference, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from dprec_kernels import reference, sample_norms
from tests.kernels.interpreter import DEVICES

pytestmark = pytest.mark.full

# Products of bfloat16 are exact in float32, so both are held to the roundings of float32 sums.
TOLERANCE = 1e-5


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("users", "length", "outputs", "inputs", "dtype"),
    [
        (3, 63, 60, 70, torch.float32),
        (2, 2, 64, 64, torch.bfloat16),
        (1, 1, 1, 1, torch.float32),
        (0, 5, 4, 3, torch.float32),
    ],
)
def test_norms_of_linear_maps(
    kernels: ModuleType, users: int, length: int, outputs: int, inputs: int, dtype: torch.dtype, device: str
) -> None:
    left = torch.randn(users, length, outputs, device=device).to(dtype)
    right = torch.randn(users, length, inputs, device=device).to(dtype)
    left[1:, 5:] = 0
    assert torch.allclose(kernels.linear(left, right), reference.linear_norms(left, right), rtol=TOLERANCE)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("items", "reads", "rest", "dtype"),
    [
        (1, 1, (1,), torch.float32),
        (30, 63, (60,), torch.bfloat16),
        (1, 40, (2, 35), torch.float32),
        (1000, 100, (), torch.float32),
        (1000, 63, (60,), torch.float32),
    ],
)
def test_norms_of_rows(
    kernels: ModuleType, items: int, reads: int, rest: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    ids = torch.randint(0, items, (3, reads), device=device)
    ids[1:, reads // 3 :] = 0  # padding reads a row too
    values = torch.randn(3, reads, *rest, device=device).to(dtype)
    assert torch.allclose(kernels.rows(ids, values), reference.row_norms(ids, values), rtol=TOLERANCE)


@pytest.mark.parametrize("device", DEVICES)
def test_nobody_and_nothing(kernels: ModuleType, device: str) -> None:
    none = torch.zeros(2, 0, dtype=torch.long, device=device)
    assert kernels.rows(none, torch.zeros(2, 0, 3, device=device)).tolist() == [0, 0]
    assert kernels.linear(torch.zeros(2, 0, 3, device=device), torch.zeros(2, 0, 4, device=device)).tolist() == [0, 0]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_device_decides(dtype: torch.dtype) -> None:
    left, right = torch.randn(2, 63, 60, device="cuda").to(dtype), torch.randn(2, 63, 7, device="cuda").to(dtype)
    assert torch.allclose(sample_norms.linear(left, right), reference.linear_norms(left, right), rtol=TOLERANCE)
    ids = torch.randint(0, 9, (2, 63), device="cuda")
    assert torch.allclose(sample_norms.rows(ids, left), reference.row_norms(ids, left), rtol=TOLERANCE)
