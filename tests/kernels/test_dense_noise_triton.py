"""The kernel against the reference, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dprec_kernels.dense_noise import reference
from dprec_kernels.row_noise import RowNoise
from tests.kernels.interpreter import DEVICES, outside, passes_in_the_interpreter, shared_memory

SOURCE = RowNoise(seed=1 << 100 | 77, stream=3, step=2**31 - 2)


@outside
def test_kernels_agree_in_the_interpreter() -> None:
    passes_in_the_interpreter(str(Path(__file__)))


@outside
def test_kernels_compile_and_fit_on_chip(kernels: ModuleType) -> None:
    types = "fp64* i32 i32 fp32 fp32" + " i32" * 2 + " i64" * 4
    assert shared_memory(kernels.dense_noise_fwd_kernel, types, BN=8, BP=64, WIDE=True) <= 99 * 1024


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("size", "width", "touched"), [(40, 8, 5), (1, 1, 1), (9, 130, 0), (0, 4, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_step_equals_the_reference(
    kernels: ModuleType, size: int, width: int, touched: int, dtype: torch.dtype, device: str
) -> None:
    table, values = torch.randn(size, width, dtype=dtype), torch.randn(touched, width, dtype=dtype)
    rows = torch.randperm(size)[:touched].sort()[0]
    exact, found = table.clone(), table.to(device)
    drawn = SOURCE(torch.empty_like(table), torch.arange(size))
    reference.dense_noise(exact, 0.7, drawn, -0.3, 0.9, rows, values)
    kernels.dense_noise(found, 0.7, SOURCE, -0.3, 0.9, rows.to(device), values.to(device))
    assert torch.allclose(found.cpu(), exact, atol=1e-6)


@pytest.fixture(name="kernels")
def _kernels() -> ModuleType:
    return importlib.import_module("dprec_kernels.dense_noise.triton")
