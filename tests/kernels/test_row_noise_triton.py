"""The kernel against the reference, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from dprec_kernels.row_noise import reference
from tests.kernels.interpreter import DEVICES, outside, shared_memory
from tests.kernels.test_row_noise import FAR

pytestmark = pytest.mark.full

SEED = 0x0123456789ABCDEF_FEDCBA9876543210


@outside
def test_kernels_compile_and_fit_on_chip(kernels: ModuleType) -> None:
    types = "i64* i64* fp32*" + " i32" * 3 + " i64" * 4
    assert shared_memory(kernels.row_noise_fwd_kernel, types, BN=8, BP=64, WIDE=False) <= 99 * 1024


@outside
@pytest.mark.parametrize("folder", ["row_noise", "dense_noise", "lazy_noise", "sparse_update"])
def test_every_key_takes_the_same_kernel(folder: str) -> None:
    """Each run has another key, whose words may fit 32 bits or not: nobody waits for a kernel for that."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    kernel = getattr(importlib.import_module(f"dprec_kernels.{folder}.triton"), f"{folder}_fwd_kernel")
    special = create_function_from_signature(kernel.signature, kernel.params, make_backend(GPUTarget("cuda", 80, 32)))
    words = ("key_low", "key_high", "row_shift", "step_shift")
    small, large = (special(**dict.fromkeys(kernel.arg_names, 2) | dict.fromkeys(words, key)) for key in (1, 2**32 - 1))
    assert small[1] == large[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("seed", "width"), [(0, 1), (1, 2), (SEED, 7), (SEED, 64)])
def test_normals_equal_the_reference(kernels: ModuleType, seed: int, width: int, device: str) -> None:
    rows, steps = [0, 1, 2**31 + 5, 2**48 - 1, 9], [1, 2**31 - 2, 2**31, 5, 2**48 - 1]
    out = torch.empty(5, width, device=device)
    kernels.row_noise(seed, 65535, torch.tensor(rows, device=device), torch.tensor(steps, device=device), out)
    exact = torch.tensor(reference.row_noise(seed, 65535, rows, steps, width), dtype=torch.float64)
    assert (out.cpu().double() - exact).abs().max() < 1e-6


@pytest.mark.parametrize("device", DEVICES)
def test_more_rows_and_columns_than_a_program_takes(
    kernels: ModuleType, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setattr(kernels, "TILE", 8)
    out = torch.empty(21, 37, device=device)
    rows, steps = torch.arange(21, device=device), torch.full((21,), 3, device=device)
    kernels.row_noise(SEED, 0, rows, steps, out)
    exact = torch.tensor(reference.row_noise(SEED, 0, rows.tolist(), steps.tolist(), 37), dtype=torch.float64)
    assert (out.cpu().double() - exact).abs().max() < 1e-6


@pytest.mark.parametrize("device", DEVICES)
def test_normals_lie_beyond_what_24_bits_reach(kernels: ModuleType, device: str) -> None:
    rows = torch.tensor([row for row, _, _ in FAR], device=device)
    out = torch.empty(len(FAR), 4, device=device)
    kernels.row_noise(SEED, 0, rows, torch.zeros_like(rows), out)
    for place, (_, column, far) in enumerate(FAR):
        assert out[place, column].item() == pytest.approx(far, abs=1e-6)


@pytest.fixture(name="kernels")
def _kernels() -> ModuleType:
    return importlib.import_module("dprec_kernels.row_noise.triton")
