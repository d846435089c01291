"""The kernel against the pieces, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from dprec_kernels.row_noise import RowNoise
from dprec_kernels.sparse_update import SGD, pieces, step_rows
from dprec_kernels.tables import Tables
from tests.kernels.interpreter import DEVICES

pytestmark = pytest.mark.full

SOURCE = RowNoise(seed=(7 << 64) + 5, stream=3, step=1 << 40)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("width", "decay", "std"), [(8, 0.0, 0.0), (5, 0.3, 0.0), (1, 0.3, 2.0), (40, 0.3, 2.0)])
def test_steps_equal_the_pieces(kernels: ModuleType, decay: float, std: float, width: int, device: str) -> None:
    source = SOURCE if std else None
    table, rows, gradient = torch.randn(20, width), torch.tensor([0, 3, 19]), torch.randn(3, width)
    exact, found = table.clone(), table.to(device)
    pieces.step_rows(exact, rows, gradient, SGD(0.1, decay), std, source)
    kernels.step_rows(found, rows.to(device), gradient.to(device), SGD(0.1, decay), std, source)
    assert torch.allclose(found.cpu(), exact, rtol=1e-6, atol=1e-6)
    assert torch.equal(found.cpu()[[1, 2, *range(4, 19)]], table[[1, 2, *range(4, 19)]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("noise", [(0.0, None), (2.0, SOURCE)])
def test_steps_of_several_tables_equal_the_pieces(kernels: ModuleType, noise: Any, device: str) -> None:
    """Of any width, whose gradients lie one after the other; a table without a gradient stays."""
    each = [torch.randn(9, 8), torch.randn(5, 130), torch.randn(4, 3), torch.randn(7, 1)]
    which, rows = torch.tensor([0, 0, 1, 3, 3, 3]), torch.tensor([1, 8, 4, 2, 3, 6])
    widths = torch.tensor([8, 8, 130, 1, 1, 1])
    starts, values = widths.cumsum(0) - widths, torch.randn(149)
    exact, found = (Tables.of([table.clone().to(there) for table in each]) for there in ("cpu", device))
    pieces.step_tables(exact, which, rows, values, starts, SGD(0.3), *noise)
    kernels.step_tables(found, *(given.to(device) for given in (which, rows, values, starts)), SGD(0.3), *noise)
    for one, other, before in zip(exact.each, found.each, each, strict=True):
        assert torch.allclose(other.cpu(), one, rtol=1e-6, atol=1e-6)
        assert torch.equal(other.cpu(), before) == (len(before) == 4)


@pytest.mark.parametrize(
    ("table", "fits"),
    [
        (torch.zeros(4, 6), True),
        (torch.zeros(4, 6, dtype=torch.float64), False),
        (torch.zeros(4, 12)[:, ::2], False),
        (torch.zeros(1, pieces.WIDEST + 1), False),
    ],
)
def test_what_has_no_kernel_takes_the_pieces(table: torch.Tensor, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("dprec_kernels.paths.fast", lambda operation, tensor, fits: asked.append(fits) or pieces)
    step_rows(table, torch.zeros(1, dtype=torch.int64), torch.ones(1, table.shape[1], dtype=table.dtype), SGD(1.0))
    assert asked == [fits]
