"""The kernel against the pieces, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from dprec_kernels.row_noise import RowNoise
from dprec_kernels.sparse_update import SGD, pieces, sparse_update
from dprec_kernels.tables import Tables
from tests.kernels.interpreter import DEVICES, outside, passes_in_the_interpreter, shared_memory

SOURCE = RowNoise(seed=1 << 100 | 77, stream=3, step=2**31 - 2)


@outside
def test_kernels_agree_in_the_interpreter() -> None:
    passes_in_the_interpreter(str(Path(__file__)))


@outside
def test_kernels_compile_and_fit_on_chip(kernels: ModuleType) -> None:
    types = "fp32* i64* i64* i64* i64* fp32* fp32*" + " i32" * 4 + " fp32" * 3 + " i32" * 2 + " i64" * 4
    kernel, most = kernels.sparse_update_fwd_kernel, {"BP": pieces.WIDEST // 2}
    assert shared_memory(kernel, types, WEIGHTED=True, NOISY=True, SEVERAL=False, **most) <= 99 * 1024
    of_tables = types.replace("fp32*", "i64*", 1)
    assert shared_memory(kernel, of_tables, WEIGHTED=False, NOISY=False, SEVERAL=True, **most) <= 99 * 1024


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("width", "std", "shared", "scaled"),
    [(8, 0.7, False, False), (5, 0.0, False, True), (1, 0.7, True, True), (40, 0.7, True, False)],
)
def test_steps_equal_the_pieces(
    kernels: ModuleType, width: int, std: float, shared: bool, scaled: bool, device: str
) -> None:
    rows, values, rule = torch.randint(0, 20, (4, 6)), torch.randn(4, 6, width), SGD(0.1, 0.3)
    if shared:
        values = values[:, :1].expand(4, 6, width)
    table = torch.randn(20, width)
    scales = torch.tensor([1.0, 0.5, 0.0, 2.0]) if scaled else None
    exact, found = table.clone(), table.to(device)
    pieces.sparse_update(exact, pieces.merge(rows, scales), values, rule, std, SOURCE)
    given = pieces.merge(rows.to(device), None if scales is None else scales.to(device))
    kernels.sparse_update(found, given, values.to(device), rule, std, SOURCE)
    assert torch.allclose(found.cpu(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_steps_of_several_tables_equal_the_pieces(kernels: ModuleType, device: str) -> None:
    """Of any width, whose gradients lie one after the other; a table without a gradient stays."""
    each = [torch.randn(9, 8), torch.randn(5, 130), torch.randn(4, 3), torch.randn(7, 1)]
    which, rows = torch.tensor([0, 0, 1, 3, 3, 3]), torch.tensor([1, 8, 4, 2, 3, 6])
    widths = torch.tensor([8, 8, 130, 1, 1, 1])
    starts, values = widths.cumsum(0) - widths, torch.randn(149)
    exact, found = (Tables.of([table.clone().to(there) for table in each]) for there in ("cpu", device))
    pieces.step_tables(exact, which, rows, values, starts, SGD(0.3))
    kernels.step_tables(found, *(given.to(device) for given in (which, rows, values, starts)), SGD(0.3))
    for one, other, before in zip(exact.each, found.each, each, strict=True):
        assert torch.allclose(other.cpu(), one, rtol=1e-6, atol=1e-6)
        assert torch.equal(other.cpu(), before) == (len(before) == 4)


@pytest.mark.parametrize(
    ("table", "source", "fits"),
    [
        (torch.zeros(4, 6), SOURCE, True),
        (torch.zeros(4, 6), None, True),
        (torch.zeros(4, 6, dtype=torch.float64), None, False),
        (torch.zeros(4, 12)[:, ::2], None, False),
        (torch.zeros(4, 6), torch.Generator(), False),
        (torch.zeros(1, pieces.WIDEST + 1), None, False),
    ],
)
def test_what_has_no_kernel_takes_the_pieces(
    table: torch.Tensor, source: Any, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr("dprec_kernels.paths.fast", lambda operation, tensor, fits: asked.append(fits) or pieces)
    rows = torch.zeros(1, 1, dtype=torch.int64)
    sparse_update(table, rows, torch.ones(1, 1, table.shape[1], dtype=table.dtype), SGD(1.0), source=source)
    assert asked == [fits]


@pytest.fixture(name="kernels")
def _kernels() -> ModuleType:
    return importlib.import_module("dprec_kernels.sparse_update.triton")
