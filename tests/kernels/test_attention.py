"""Attention by OpenBLAS, against torch's in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from dprec.gradients.own_functions import called
from dprec.gradients.uses.as_written import AsWritten
from dprec_kernels import attention, products
from dprec_kernels.attention import attend, takes
from dprec_kernels.products import openblas

SHAPES = {
    "heads": ((3, 4, 20, 8), (3, 4, 20, 8), (3, 4, 20, 5)),
    "one head": ((3, 1, 20, 8), (3, 1, 20, 8), (3, 1, 20, 8)),
    "no heads": ((3, 20, 8), (3, 20, 8), (3, 20, 8)),
    "other keys": ((3, 2, 7, 8), (3, 2, 20, 8), (3, 2, 20, 8)),
}


class OwnFunctions(AsWritten):
    """Has dprec's attention run where no tape does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return called(func, args, kwargs or {})


@pytest.fixture(autouse=True)
def on_any_processor(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(products, "mkl_is_narrow", lambda: True)
    monkeypatch.setattr(openblas, "is_wide", lambda: True)
    monkeypatch.setattr(attention, "LEAST", 1)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def inputs_of(shapes: str) -> list[Tensor]:
    """Heads lie beside each other, as a linear map leaves them."""
    given = []
    for shape in SHAPES[shapes]:
        lies = torch.randn(shape if len(shape) == 3 else (shape[0], shape[2], shape[1], shape[3]))
        given.append((lies if len(shape) == 3 else lies.transpose(1, 2)).requires_grad_())
    return given


def fading(length: int, width: int) -> Tensor:
    ages = torch.arange(length)[:, None] - torch.arange(width)
    return (ages * math.log(0.8)).masked_fill(ages < 0, -math.inf)


@pytest.mark.parametrize("at_once", [1, 1 << 18])
@pytest.mark.parametrize("kind", ["plain", "causal", "faded"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_it_and_its_gradient_are_torchs(shapes: str, kind: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "AT_ONCE", at_once)
    given = inputs_of(shapes)
    mask = fading(given[0].shape[-2], given[1].shape[-2]) if kind == "faded" else None
    assert takes(*given, mask)
    found = attend(*given, mask, kind == "causal", 0.3)
    upstream = torch.randn_like(found)
    slopes = torch.autograd.grad(found, given, upstream)
    wide = [each.detach().double().requires_grad_() for each in given]
    mask = None if mask is None else mask.double()
    exact = F.scaled_dot_product_attention(*wide, mask, is_causal=kind == "causal", scale=0.3)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=2e-6)
    for own, true in zip(slopes, torch.autograd.grad(exact, wide, upstream.double()), strict=True):
        torch.testing.assert_close(own.double(), true, rtol=0, atol=1e-5)


def test_what_one_user_gets_does_not_hang_on_the_others() -> None:
    given = inputs_of("heads")
    whole = attend(*given, causal=True, scale=1.0)
    alone = attend(*(each[1:2] for each in given), causal=True, scale=1.0)
    assert torch.equal(whole[1:2], alone)


def test_a_gradient_that_lies_upon_itself_is_taken() -> None:
    given = inputs_of("heads")
    found = attend(*given, causal=True)
    spread = torch.autograd.grad(found.sum(), given, retain_graph=True)
    whole = torch.autograd.grad(found, given, torch.ones_like(found))
    assert all(torch.equal(a, b) for a, b in zip(spread, whole, strict=True))


def test_a_gradient_with_its_sign_in_a_bit_is_taken() -> None:
    given = inputs_of("heads")
    found = attend(*given, causal=True)
    plain = torch.autograd.grad(found, given, -torch.ones_like(found), retain_graph=True)
    bit = torch.autograd.grad(found, given, torch._neg_view(torch.ones_like(found)))
    assert all(torch.equal(a, b) for a, b in zip(plain, bit, strict=True))


@pytest.mark.parametrize("low", [-1e9, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("size", [1.0, 1e4])
def test_a_row_that_a_mask_leaves_nearly_nothing_is_as_in_float64(low: float, size: float) -> None:
    query, key, value = inputs_of("heads")
    query = (size * query).detach().requires_grad_()
    mask = torch.zeros(20, 20)
    mask[0] = low
    assert takes(query, key, value, mask)
    found, exact = attend(query, key, value, mask), F.scaled_dot_product_attention(query, key, value, mask, scale=1.0)
    upstream = torch.randn_like(found)
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-3)
    for own, true in zip(*(torch.autograd.grad(x, value, upstream) for x in (found, exact)), strict=True):
        torch.testing.assert_close(own, true, rtol=1e-3, atol=1e-3)


def asked(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The queries that dprec's own attention gets."""
    queries: list[Tensor] = []
    own = attention.attend

    def noted(query: Tensor, *others: object) -> Tensor:
        queries.append(query)
        return own(query, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(attention, "attend", noted)
    return queries


def test_torchs_attention_is_it_where_a_tape_or_a_check_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, given = asked(monkeypatch), inputs_of("heads")
    with OwnFunctions():
        found = F.scaled_dot_product_attention(*given, is_causal=True)
    torch.testing.assert_close(found, F.scaled_dot_product_attention(*given, is_causal=True), rtol=0, atol=2e-6)
    assert len(queries) == 1


def _nothing_left() -> Tensor:
    mask = torch.zeros(20, 20)
    mask[3] = -math.inf
    return mask


@pytest.mark.parametrize(
    "options",
    [
        {"dropout_p": 0.5},
        {"attn_mask": torch.ones(20, 20).tril().bool()},
        {"attn_mask": torch.zeros(3, 1, 20, 20)},
        {"attn_mask": torch.zeros(20, 20, requires_grad=True)},
        {"attn_mask": _nothing_left()},
        {"attn_mask": torch.zeros(20, 1)},
    ],
    ids=["dropout", "which", "of each user", "trained", "nothing left", "of keys alone"],
)
def test_other_attention_is_torchs_own(monkeypatch: pytest.MonkeyPatch, options: dict[str, object]) -> None:
    queries, given = asked(monkeypatch), inputs_of("heads")
    torch.manual_seed(1)
    with OwnFunctions():
        found = F.scaled_dot_product_attention(*given, **options)  # type: ignore[arg-type]
    torch.manual_seed(1)
    expected = F.scaled_dot_product_attention(*given, **options)  # type: ignore[arg-type]
    assert torch.equal(found.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert not queries


def test_who_differentiates_twice_or_trains_the_scale_gets_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, (query, key, value) = asked(monkeypatch), inputs_of("heads")
    with OwnFunctions(), sdpa_kernel(SDPBackend.MATH):
        (slope,) = torch.autograd.grad(
            F.scaled_dot_product_attention(query, key, value).sum(), query, create_graph=True
        )
        torch.autograd.grad(slope.square().sum(), query)
    with OwnFunctions(), pytest.raises(TypeError):
        F.scaled_dot_product_attention(query, key, value, scale=torch.ones(3, 1, 1, 1))  # type: ignore[arg-type]
    assert not queries


def test_other_types_and_wrong_shapes_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, (query, key, value) = asked(monkeypatch), inputs_of("heads")
    with OwnFunctions():
        assert F.scaled_dot_product_attention(query.double(), key.double(), value.double()).dtype == torch.float64
        with torch.autocast("cpu", torch.bfloat16):
            assert F.scaled_dot_product_attention(query, key, value).dtype == torch.bfloat16
        F.scaled_dot_product_attention(query[:1], key, value)
        with pytest.raises(RuntimeError):
            F.scaled_dot_product_attention(query[..., :3], key, value)
    assert not queries
