"""Products by oneDNN, against float64 and against torch's own."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dprec_kernels import products, wide_sum
from dprec_kernels.products import add_multiplied, affine, multiply, summed_transposed

pytestmark = pytest.mark.skipif(not products.has_onednn(), reason="this torch has no oneDNN")
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row by row": lambda m: m.contiguous(),
    "column by column": lambda m: m.T.contiguous().T,
    "with gaps": lambda m: torch.cat([m, m], 1)[:, : m.shape[1]],
    "columns with gaps": lambda m: torch.cat([m.T, m.T], 1)[:, : m.shape[0]].T,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what oneDNN multiplies, which it does at any size in here, on any processor."""
    shapes: list[tuple[int, ...]] = []
    own = products._onednn

    def noted(left: Tensor, right: Tensor) -> Tensor:
        assert right.is_contiguous() or right.T.is_contiguous()  # gaps take it a thousand times as long
        shapes.append((*left.shape, len(right)))
        return own(left, right)

    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(products, "_onednn", noted)
    monkeypatch.setattr(products, "LEAST", 1)
    return shapes


@pytest.mark.parametrize("inner", [10, 70])
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_a_product_is_that_of_float64_however_its_matrices_lie(
    asked: list[tuple[int, ...]], left: str, right: str, inner: int
) -> None:
    a, b = LAYOUTS[left](torch.randn(333, inner)), LAYOUTS[right](torch.randn(inner, 17))
    exact, total = a.double() @ b.double(), torch.ones(333, 17)
    add_multiplied(total, a, b)
    error = 2e-6 * a.double().norm(dim=1, keepdim=True) * b.double().norm(dim=0)
    assert ((multiply(a, b, torch.empty(333, 17)).double() - exact).abs() <= error).all()
    assert ((total.double() - 1 - exact).abs() <= error + 1e-6).all()
    assert bool(asked) == ("gaps" not in right)  # a right matrix with gaps is not for oneDNN


@pytest.mark.parametrize("count", [1, 63, 64])
@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_a_sum_is_that_of_float64_however_its_matrices_lie(
    asked: list[tuple[int, ...]], left: str, right: str, count: int
) -> None:
    a, b = LAYOUTS[left](torch.randn(count, 21)), LAYOUTS[right](torch.randn(count, 17))
    found, exact = summed_transposed(a, b, torch.empty(17, 21), often=64), b.double().T @ a.double()
    error = 2e-6 * b.double().norm(dim=0).unsqueeze(1) * a.double().norm(dim=0)
    assert ((found.double() - exact).abs() <= error).all()
    assert bool(asked) == (count == 64)  # others would be shapes that no other sum has


def test_batches_of_any_size_have_few_shapes(asked: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shape is compiled when it is first met, which takes longer than the product."""
    monkeypatch.setattr(products, "LEAST", 1 << 14)
    tall, wide = torch.randn(100, 10), torch.randn(10, 100)
    for count in range(200, 400):
        multiply(torch.randn(count, 100), tall, torch.empty(count, 10))
        multiply(torch.randn(count, 10), wide, torch.empty(count, 100))
        add_multiplied(torch.zeros(count, 10), torch.randn(count, 100), tall)
    assert len(asked) >= 600
    assert len(set(asked)) < 20


def test_nothing_and_other_types_are_left_to_torch(asked: list[tuple[int, ...]]) -> None:
    assert multiply(torch.ones(0, 3), torch.ones(3, 2), torch.empty(0, 2)).shape == (0, 2)
    assert multiply(torch.ones(2, 0), torch.ones(0, 2), torch.empty(2, 2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    wide = torch.randn(4, 5).double()
    assert torch.equal(multiply(wide, wide.T, torch.empty(4, 4).double()), wide @ wide.T)
    assert not asked


def test_what_is_not_finite_stays_where_it_is(asked: list[tuple[int, ...]]) -> None:
    left, right = torch.ones(33, 4), torch.ones(4, 5)
    left[1, 2] = float("inf")
    right[0, 4] = float("nan")
    found = multiply(left, right, torch.empty(33, 5))
    assert torch.equal(torch.isnan(found), torch.isnan(left @ right))
    assert torch.equal(torch.isinf(found), torch.isinf(left @ right))
    assert asked


@pytest.mark.parametrize("biased", [True, False])
def test_a_linear_map_has_the_gradient_of_torch(asked: list[tuple[int, ...]], biased: bool) -> None:
    x, weight, bias = torch.randn(50, 8, requires_grad=True), torch.randn(6, 8), torch.randn(6) if biased else None
    upstream = torch.randn(50, 6)
    found, expected = affine(x, weight, bias), F.linear(x, weight, bias)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    (own,) = torch.autograd.grad(found, x, upstream)
    (torchs,) = torch.autograd.grad(expected, x, upstream)
    torch.testing.assert_close(own, torchs, rtol=1e-5, atol=1e-5)
    assert found.grad_fn is not None
    assert not found._is_view()  # it may be changed in place
    assert len(asked) >= 2


def test_the_gradient_of_a_linear_map_can_be_differentiated(asked: list[tuple[int, ...]]) -> None:
    x, weight = torch.randn(50, 8, requires_grad=True), torch.randn(6, 8)
    (slope,) = torch.autograd.grad(affine(x, weight, None).square().sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    torch.testing.assert_close(bend, (2 * weight.T @ weight @ torch.ones(8)).expand(50, 8), rtol=1e-4, atol=1e-4)


def test_what_is_trained_or_cast_is_left_to_torch(asked: list[tuple[int, ...]]) -> None:
    x, weight = torch.randn(50, 8), torch.randn(6, 8)
    assert affine(x, weight.clone().requires_grad_(), None).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert affine(x, weight, None).dtype == torch.bfloat16
    assert not asked


class Twice(Tensor):
    """A weight that has a linear map of its own."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = super().__torch_function__(func, types, args, kwargs or {})
        return 2 * found if func is F.linear else found


def test_a_linear_map_is_that_of_torch_whatever_its_weight_is(asked: list[tuple[int, ...]]) -> None:
    x, weight = torch.randn(50, 8), torch.randn(6, 8)
    expected = 2 * F.linear(x, weight)
    torch.testing.assert_close(affine(x, weight.as_subclass(Twice), None).as_subclass(Tensor), expected)
    torch.testing.assert_close(affine(x, weight[0], None), x @ weight[0])
    with pytest.raises(RuntimeError, match="dtype"):
        affine(x, weight, torch.zeros(6).double())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        affine(x, weight[:, :7], None)
    assert not asked


def test_onednn_can_be_switched_off(asked: list[tuple[int, ...]]) -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        affine(torch.randn(50, 8), torch.randn(6, 8), None)
    assert not asked


def test_a_sum_over_users_alike_is_as_exact_as_promised(asked: list[tuple[int, ...]]) -> None:
    left, right = torch.full((20_000, 130), 0.1), torch.ones(20_000, 130)
    total = torch.zeros(130, 130, dtype=torch.float64)
    wide_sum.add_product(total, left, right)
    exact = 20_000 * float(torch.tensor(0.1))
    assert float((total / exact - 1).abs().max()) < 8e-7
    assert asked


def test_a_variable_that_lets_onednn_compute_in_less_keeps_it_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    assert not products.has_onednn()


@pytest.mark.skipif(sys.platform != "linux" or platform.machine() != "x86_64", reason="another processor or system")
def test_torch_has_what_is_asked_of_it() -> None:
    """Both are private to torch: where one is gone, nothing else would tell."""
    assert products.has_onednn()
    assert isinstance(torch.cpu._is_avx512_supported(), bool)


@pytest.mark.parametrize(
    ("processor", "wide", "mkl", "faster"),
    [
        ("vendor_id\t: AuthenticAMD", True, True, True),
        ("vendor_id\t: GenuineIntel", True, True, False),
        ("vendor_id\t: AuthenticAMD", False, True, False),
        ("vendor_id\t: AuthenticAMD", True, False, False),
        ("arm", False, False, False),
    ],
)
def test_onednn_is_for_amds_processors_with_wide_instructions(
    monkeypatch: pytest.MonkeyPatch, processor: str, wide: bool, mkl: bool, faster: bool
) -> None:
    monkeypatch.setattr(products, "_processor", lambda: processor)
    monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: wide)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: mkl)
    assert products.onednn_is_faster.__wrapped__() == faster
