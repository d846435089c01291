"""The kernel against the pieces, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

from dprec_kernels.row_noise import RowNoise
from dprec_kernels.sparse_update import SGD, pieces
from tests.kernels.interpreter import DEVICES, outside, passes_in_the_interpreter, shared_memory

SOURCE = RowNoise(seed=1 << 100 | 77, stream=3, step=2**31 - 2)


@outside
def test_kernels_agree_in_the_interpreter() -> None:
    passes_in_the_interpreter(str(Path(__file__)))


@outside
def test_kernels_compile_and_fit_on_chip(kernels: ModuleType) -> None:
    types = "fp32* i64* i64* i64* fp32* fp32*" + " i32" * 4 + " fp32" * 3 + " i32" * 2 + " i64" * 4
    shared = shared_memory(kernels.sparse_update_fwd_kernel, types, WEIGHTED=True, NOISY=True, BP=kernels.WIDEST // 2)
    assert shared <= 99 * 1024


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
    assert kernels.fits(found, SOURCE)
    kernels.sparse_update(found, given, values.to(device), rule, std, SOURCE)
    assert torch.allclose(found.cpu(), exact, rtol=1e-5, atol=1e-5)


def test_what_has_no_kernel_takes_the_pieces(kernels: ModuleType) -> None:
    table = torch.zeros(4, 6)
    assert not kernels.fits(table.double(), None)
    assert not kernels.fits(table[:, ::2], None)
    assert not kernels.fits(table, torch.Generator())
    assert not kernels.fits(torch.zeros(1, kernels.WIDEST + 1), None)


@pytest.fixture(name="kernels")
def _kernels() -> ModuleType:
    return importlib.import_module("dprec_kernels.sparse_update.triton")
