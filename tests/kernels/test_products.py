"""Products by OpenBLAS, against float64 and against torch's own."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dprec_kernels import products, wide_sum
from dprec_kernels.products import (
    add_multiplied,
    add_summed,
    affine,
    multiply,
    multiply_each,
    openblas,
)

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row by row": lambda m: m.contiguous(),
    "column by column": lambda m: m.T.contiguous().T,
    "with gaps": lambda m: torch.cat([m, m], 1)[:, : m.shape[1]],
    "columns with gaps": lambda m: torch.cat([m.T, m.T], 1)[:, : m.shape[0]].T,
}


class Asked(list[tuple[int, ...]]):
    """The shapes of what OpenBLAS multiplied."""


@pytest.fixture
def by_openblas(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    """numpy's library multiplies at any size, on any processor, whatever instructions it takes."""
    shapes = Asked()
    own = openblas.product

    def noted(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        shapes.append((*left.shape, right.shape[-1]))
        return own(left, right, out)

    monkeypatch.setattr(products, "mkl_is_narrow", lambda: True)
    monkeypatch.setattr(openblas, "is_wide", lambda: True)
    monkeypatch.setattr(openblas, "product", noted)
    monkeypatch.setattr(openblas, "LEAST", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield shapes
    torch.set_num_threads(before)


# Each layout once on either side.
PAIRS = list(zip(LAYOUTS, ["with gaps", "row by row", "columns with gaps", "column by column"], strict=True))


@pytest.mark.parametrize("inner", [10, 70])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_a_product_is_that_of_float64_however_its_matrices_lie(
    by_openblas: Asked, left: str, right: str, inner: int
) -> None:
    a, b = LAYOUTS[left](torch.randn(333, inner)), LAYOUTS[right](torch.randn(inner, 17))
    exact, total = a.double() @ b.double(), torch.ones(333, 17)
    add_multiplied(total, a, b)
    error = 2e-6 * a.double().norm(dim=1, keepdim=True) * b.double().norm(dim=0)
    assert ((multiply(a, b, torch.empty(333, 17)).double() - exact).abs() <= error).all()
    assert ((total.double() - 1 - exact).abs() <= error + 1e-6).all()
    assert by_openblas


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("left", "right"), PAIRS)
def test_sums_of_each_user_are_whole_however_their_matrices_lie(
    by_openblas: Asked, left: str, right: str, dtype: torch.dtype
) -> None:
    a, b = (
        torch.stack([lie(torch.randn(70, n, dtype=dtype)) for _ in range(3)])
        for lie, n in zip((LAYOUTS[left], LAYOUTS[right]), (21, 17), strict=True)
    )
    found, exact = multiply_each(a.mT, b, torch.empty(3, 21, 17, dtype=dtype)), a.double().mT @ b.double()
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=20 * torch.finfo(dtype).eps * 70)
    total = torch.ones(21, 17, dtype=dtype)
    add_summed(total, LAYOUTS[left](a[0]), LAYOUTS[right](b[0]))
    torch.testing.assert_close(total.double() - 1, exact[0], rtol=0, atol=20 * torch.finfo(dtype).eps * 70)
    assert len(by_openblas) == 2


@pytest.mark.parametrize(
    "lie",
    [
        lambda m: m[:, ::2],
        lambda m: m.as_strided((30, 20), (10, 1)),
        lambda m: m[:1].expand(40, 20),
        lambda m: m[:, ::2].T,
    ],
)
def test_openblas_is_not_asked_for_what_it_cannot_read(by_openblas: Asked, lie: Callable[[Tensor], Tensor]) -> None:
    """numpy would multiply number by number, a hundred times as long."""
    a = lie(torch.randn(20, 20))
    multiply(a, torch.randn(a.shape[1], 5), torch.empty(len(a), 5))
    assert not by_openblas


def test_openblas_says_for_what_processor_it_was_built() -> None:
    """The names of its functions hang on how numpy was built: where they change, nothing else would tell."""
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]  # type: ignore[index]
    if "openblas" not in blas or sys.platform != "linux":
        pytest.skip("numpy has another library")
    assert openblas._ask("corename", ctypes.c_char_p, lambda: b"")()
    assert openblas._OneThread()._count() >= 1


@pytest.mark.parametrize(("inner", "outer"), [(64, 64), (256, 64), (64, 700)])
def test_a_row_has_the_same_bits_among_any_number(by_openblas: Asked, inner: int, outer: int) -> None:
    left, right = torch.randn(300, inner), torch.randn(outer, inner).T
    found = [multiply(left[:count], right, torch.empty(count, outer))[:16] for count in (16, 17, 31, 300)]
    assert len(by_openblas) == 4
    assert all(torch.equal(each, found[0]) for each in found)


def test_what_torch_alone_can_do_is_left_to_it(by_openblas: Asked) -> None:
    """Sparse inputs, other types, nothing at all, and weights that are trained or cast."""
    x, weight = torch.randn(50, 8), torch.randn(6, 8)
    torch.testing.assert_close(affine(x.to_sparse(), weight, None), x @ weight.T)
    torch.testing.assert_close(affine(x.to_sparse_csr(), weight, None), x @ weight.T)
    assert affine(x, weight.clone().requires_grad_(), None).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert affine(x, weight, None).dtype == torch.bfloat16
    assert multiply(torch.ones(0, 3), torch.ones(3, 2), torch.empty(0, 2)).shape == (0, 2)
    assert multiply(torch.ones(2, 0), torch.ones(0, 2), torch.empty(2, 2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    small = torch.randn(4, 5).bfloat16()
    assert torch.equal(multiply(small, small.T, torch.empty(4, 4).bfloat16()), small @ small.T)
    assert not by_openblas


def test_what_is_not_finite_stays_where_it_is_and_is_no_error_of_numpys(by_openblas: Asked) -> None:
    """An error would stop the step for one user's numbers, or tell them to the terminal."""
    left, right = torch.ones(33, 4), torch.ones(4, 5)
    left[1, 2] = float("inf")
    right[0, 4] = float("nan")
    with np.errstate(all="raise"):
        found = multiply(left, right, torch.empty(33, 5))
    assert torch.equal(torch.isnan(found), torch.isnan(left @ right))
    assert torch.equal(torch.isinf(found), torch.isinf(left @ right))
    assert by_openblas


@pytest.mark.parametrize("biased", [True, False])
def test_a_linear_map_has_the_gradient_of_torch(by_openblas: Asked, biased: bool) -> None:
    x, weight, bias = torch.randn(50, 8, requires_grad=True), torch.randn(6, 8), torch.randn(6) if biased else None
    upstream = torch.randn(50, 6)
    found, expected = affine(x, weight, bias), F.linear(x, weight, bias)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    (own,) = torch.autograd.grad(found, x, upstream)
    (torchs,) = torch.autograd.grad(expected, x, upstream)
    torch.testing.assert_close(own, torchs, rtol=1e-5, atol=1e-5)
    assert found.grad_fn is not None
    assert not found._is_view()  # it may be changed in place
    assert len(by_openblas) >= 2


@pytest.mark.parametrize("outputs", [1, 2, 64])
@pytest.mark.parametrize("inputs", [1, 2, 32])
def test_a_wide_product_of_users_alike_is_as_exact_as_promised(outputs: int, inputs: int) -> None:
    for seed in range(30):
        draw = torch.Generator().manual_seed(seed)
        left, right = torch.rand(1, outputs, generator=draw) + 0.01, torch.rand(1, inputs, generator=draw) + 0.01
        total = torch.zeros(outputs, inputs, dtype=torch.float64)
        wide_sum.add_product(total, left.repeat(512, 1), right.repeat(512, 1))
        exact = left.double().T @ right.double()
        assert float((total / 512 - exact).norm() / exact.norm()) < 1.2e-6


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="another processor or system")
def test_torch_has_what_is_asked_of_it() -> None:
    """It is private to torch: where it is gone, nothing else would tell."""
    assert isinstance(torch.cpu._is_avx512_supported(), bool)
