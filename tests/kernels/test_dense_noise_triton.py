"""The kernel against the reference, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from dprec_kernels import reference
from dprec_kernels.row_noise import RowNoise
from tests.kernels.interpreter import DEVICES

pytestmark = pytest.mark.full

SOURCE = RowNoise(seed=1 << 100 | 77, stream=3, step=2**31 - 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("size", "width", "touched", "dtype"),
    [(40, 8, 5, torch.float32), (1, 1, 1, torch.float64), (9, 130, 0, torch.float64), (0, 4, 0, torch.float32)],
)
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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_several_matrices_get_what_each_gets_alone(kernels: ModuleType, dtype: torch.dtype, device: str) -> None:
    shapes = [(1, 7), (3, 1024), (1, 1500), (40, 2), (1, 1)]
    found = [torch.ones(shape, dtype=dtype, device=device) for shape in shapes]
    kernels.of_matrices(found, 0.7, SOURCE)
    for place, each in enumerate(found):
        alone = torch.ones_like(each)
        source = RowNoise(SOURCE.seed, SOURCE.stream + place, SOURCE.step)
        kernels.dense_noise(alone, 0.7, source, 1.0, 1.0, torch.empty(0, dtype=torch.int64), alone[:0])
        assert torch.equal(each, alone)
