"""The loops against the plain steps, and against torch's own layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec_kernels import recurrent, reference

SIZES = [(1, 1, 1, 1), (2, 3, 5, 4), (9, 4, 3, 6), (30, 2, 8, 8)]  # steps, users, inputs, hidden
LAYERS: dict[str, tuple[Any, Any, int, int, type[nn.RNNBase]]] = {
    "gru": (recurrent.gru, reference.gru, 3, 2, nn.GRU),
    "lstm": (recurrent.lstm, reference.lstm, 4, 1, nn.LSTM),
}


def hidden_states(layer: Callable[..., Any], *given: Tensor) -> Tensor:
    found = layer(*given)
    return found[0] if isinstance(found, tuple) else found


def drawn(
    name: str, size: tuple[int, int, int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    steps, users, inputs, hidden = size
    _, _, gates, biases, _ = LAYERS[name]
    wide = gates * hidden
    shifts = [torch.randn(wide, dtype=dtype).expand(steps, users, wide).requires_grad_() for _ in range(biases)]
    x = torch.randn(steps, users, inputs, dtype=dtype, requires_grad=True)
    return x, torch.randn(wide, inputs, dtype=dtype), torch.randn(wide, hidden, dtype=dtype), shifts


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_states_and_gradients_equal_the_reference(
    name: str, size: tuple[int, int, int, int], dtype: torch.dtype, tolerance: float
) -> None:
    fast, plain, *_ = LAYERS[name]
    x, weight, own, shifts = drawn(name, size, dtype)
    found, expected = (hidden_states(layer, x, weight, own, *shifts) for layer in (fast, plain))
    assert torch.allclose(found, expected, atol=tolerance)
    pull = torch.randn_like(found)
    gradients = torch.autograd.grad((found * pull).sum(), [x, *shifts])
    exact = torch.autograd.grad((expected * pull).sum(), [x, *shifts])
    for one, other in zip(gradients, exact, strict=True):
        assert torch.allclose(one, other, atol=tolerance * 10, rtol=tolerance)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("size", SIZES)
def test_states_and_weights_gradients_equal_torchs_own_layer(name: str, size: tuple[int, int, int, int]) -> None:
    fast, _, gates, biases, kind = LAYERS[name]
    steps, users, inputs, hidden = size
    layer = kind(inputs, hidden).double()
    both = [layer.bias_ih_l0, layer.bias_hh_l0] if biases == 2 else [layer.bias_ih_l0 + layer.bias_hh_l0]
    shifts = [b.detach().expand(steps, users, gates * hidden).requires_grad_() for b in both]
    x = torch.randn(steps, users, inputs, dtype=torch.float64, requires_grad=True)
    found = hidden_states(fast, x, layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach(), *shifts)
    expected = layer(x)[0]
    assert torch.allclose(found, expected, atol=1e-12)
    pull = torch.randn_like(found)
    to_x, *at_gates = torch.autograd.grad((found * pull).sum(), [x, *shifts])
    exact = torch.autograd.grad((expected * pull).sum(), [x, *layer.parameters()])
    before = torch.cat([torch.zeros_like(found[:1]), found[:-1]]).detach()
    outer, inner = at_gates[0].flatten(0, 1), at_gates[-1].flatten(0, 1)
    derived = [to_x, outer.T @ x.flatten(0, 1), inner.T @ before.flatten(0, 1), outer.sum(0), inner.sum(0)]
    for one, other in zip(derived, exact, strict=True):
        assert torch.allclose(one, other, atol=1e-10)


def test_the_cells_are_those_of_torch() -> None:
    layer = nn.LSTM(3, 4).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    bias = (layer.bias_ih_l0 + layer.bias_hh_l0).detach().expand(5, 2, 16)
    _, cells = recurrent.lstm(x, layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach(), bias)
    assert torch.allclose(cells[-1], layer(x)[1][1][0], atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_saturated_gates_stay_finite(name: str) -> None:
    x, weight, own, shifts = drawn(name, (6, 2, 3, 4), torch.float32)
    found = hidden_states(LAYERS[name][0], 1e6 * x, weight, own, *shifts)
    assert found.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), [x, *shifts]))


@pytest.mark.parametrize("name", LAYERS)
def test_a_second_backward_pass_is_refused(name: str) -> None:
    x, weight, own, shifts = drawn(name, (4, 2, 3, 4), torch.float32)
    total = hidden_states(LAYERS[name][0], x, weight, own, *shifts).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        total.backward()


@pytest.mark.parametrize("name", LAYERS)
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    x, weight, own, shifts = drawn(name, (4, 2, 3, 4), torch.float32)
    with pytest.raises(ValueError, match="gates"):
        LAYERS[name][0](x, weight[:, :2], own, *shifts)
    with pytest.raises(ValueError, match="gates"):
        LAYERS[name][0](x, weight, own, *[shift[:2] for shift in shifts])
