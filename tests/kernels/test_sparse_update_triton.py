"""The kernel against the pieces, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from dprec_kernels.row_noise import RowNoise
from dprec_kernels.sparse_update import SGD, Momentum, RowAdagrad, Rule, pieces
from tests.kernels.interpreter import DEVICES, outside, passes_in_the_interpreter, shared_memory

SOURCE = RowNoise(seed=1 << 100 | 77, stream=3, step=2**31 - 2)


@outside
def test_kernels_agree_in_the_interpreter() -> None:
    passes_in_the_interpreter(str(Path(__file__)))


@outside
@pytest.mark.parametrize("kind", [0, 1, 2])
def test_kernels_compile_and_fit_on_chip(kernels: ModuleType, kind: int) -> None:
    types = "fp32* fp32* i64* i64* i64* fp32* fp32*" + " i32" * 4 + " fp32" * 4 + " i32" * 2 + " i64" * 4
    shared = shared_memory(
        kernels.sparse_update_fwd_kernel, types, KIND=kind, WEIGHTED=True, NOISY=True, BP=kernels.WIDEST // 2
    )
    assert shared <= 99 * 1024


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["sgd", "momentum", "adagrad"])
@pytest.mark.parametrize(
    ("width", "std", "shared", "scaled"),
    [(8, 0.7, False, False), (5, 0.0, False, True), (1, 0.7, True, True), (40, 0.7, True, False)],
)
def test_steps_equal_the_pieces(
    kernels: ModuleType, kind: str, width: int, std: float, shared: bool, scaled: bool, device: str
) -> None:
    rows, values = torch.randint(0, 20, (4, 6)), torch.randn(4, 6, width)
    if shared:
        values = values[:, :1].expand(4, 6, width)
    table, state = torch.randn(20, width), torch.rand(20, width) if kind == "momentum" else torch.rand(20)
    scales = torch.tensor([1.0, 0.5, 0.0, 2.0]) if scaled else None
    among = torch.tensor([0, 3, 7, 19]) if shared else None
    exact, found = (table.clone(), state.clone()), (table.to(device), state.to(device))
    reads = pieces.merge(rows, scales, 5, among)
    pieces.sparse_update(exact[0], reads, values, _rule(kind, exact[1]), std, SOURCE)
    given = pieces.merge(*(None if each is None else each.to(device) for each in (rows, scales)), 5, _to(among, device))
    rule = _rule(kind, found[1])
    assert kernels.fits(found[0], rule, SOURCE)
    kernels.sparse_update(found[0], given, values.to(device), rule, std, SOURCE)
    for one, other in zip(found, exact, strict=True):
        assert torch.allclose(one.cpu(), other, rtol=1e-5, atol=1e-5)


def test_what_has_no_kernel_takes_the_pieces(kernels: ModuleType) -> None:
    table = torch.zeros(4, 6)
    assert not kernels.fits(table.double(), SGD(0.1), None)
    assert not kernels.fits(table[:, ::2], SGD(0.1), None)
    assert not kernels.fits(table, Momentum(0.1, 0.9, table.double()), None)
    assert not kernels.fits(table, SGD(0.1), torch.Generator())
    assert not kernels.fits(torch.zeros(1, kernels.WIDEST + 1), SGD(0.1), None)


def _rule(kind: str, state: Tensor) -> Rule:
    if kind == "sgd":
        return SGD(0.1, 0.3)
    return Momentum(0.1, 0.9, state, 0.3) if kind == "momentum" else RowAdagrad(0.1, state, 1e-2)


def _to(tensor: Tensor | None, device: str) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


@pytest.fixture(name="kernels")
def _kernels() -> ModuleType:
    return importlib.import_module("dprec_kernels.sparse_update.triton")
