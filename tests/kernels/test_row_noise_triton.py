"""The kernel against the reference, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from dprec_kernels.row_noise import reference
from tests.kernels.interpreter import DEVICES

pytestmark = pytest.mark.full

SEED = 0x0123456789ABCDEF_FEDCBA9876543210


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
