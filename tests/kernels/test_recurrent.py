"""The loops against torch's own layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec_kernels import recurrent

SIZES = [(1, 1, 1, 1), (2, 3, 5, 4), (9, 4, 3, 6), (30, 2, 8, 8)]  # steps, users, inputs, hidden
LAYERS: dict[str, tuple[Any, int, int, type[nn.RNNBase]]] = {  # gates, and biases whose gradients differ
    "gru": (recurrent.gru, 3, 2, nn.GRU),
    "lstm": (recurrent.lstm, 4, 1, nn.LSTM),
}


def hidden_states(layer: Callable[..., Any], *given: Tensor) -> Tensor:
    found = layer(*given)
    return found[0] if isinstance(found, tuple) else found


def drawn(name: str, steps: int) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    _, gates, biases, _ = LAYERS[name]
    users, inputs, hidden, wide = 2, 3, 4, gates * 4
    shifts = [torch.randn(wide).expand(steps, users, wide).requires_grad_() for _ in range(biases)]
    x = torch.randn(steps, users, inputs, requires_grad=True)
    return x, torch.randn(wide, inputs), torch.randn(wide, hidden), shifts


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_states_and_weights_gradients_equal_torchs_own_layer(
    name: str, size: tuple[int, int, int, int], dtype: torch.dtype, tolerance: float
) -> None:
    fast, gates, biases, kind = LAYERS[name]
    steps, users, inputs, hidden = size
    layer = kind(inputs, hidden).to(dtype)
    both = [layer.bias_ih_l0, layer.bias_hh_l0] if biases == 2 else [layer.bias_ih_l0 + layer.bias_hh_l0]
    shifts = [b.detach().expand(steps, users, gates * hidden).requires_grad_() for b in both]
    x = torch.randn(steps, users, inputs, dtype=dtype, requires_grad=True)
    found = hidden_states(fast, x, layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach(), *shifts)
    expected = layer(x)[0]
    assert torch.allclose(found, expected, atol=tolerance)
    pull = torch.randn_like(found)
    to_x, *at_gates = torch.autograd.grad((found * pull).sum(), [x, *shifts])
    exact = torch.autograd.grad((expected * pull).sum(), [x, *layer.parameters()])
    before = torch.cat([torch.zeros_like(found[:1]), found[:-1]]).detach()
    outer, inner = at_gates[0].flatten(0, 1), at_gates[-1].flatten(0, 1)
    derived = [to_x, outer.T @ x.flatten(0, 1), inner.T @ before.flatten(0, 1), outer.sum(0), inner.sum(0)]
    for one, other in zip(derived, exact, strict=True):
        assert torch.allclose(one, other, atol=100 * tolerance, rtol=tolerance)


def test_the_cells_are_those_of_torch() -> None:
    layer = nn.LSTM(3, 4).double()
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    bias = (layer.bias_ih_l0 + layer.bias_hh_l0).detach().expand(5, 2, 16)
    _, cells = recurrent.lstm(x, layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach(), bias)
    assert torch.allclose(cells[-1], layer(x)[1][1][0], atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
def test_saturated_gates_stay_finite(name: str) -> None:
    x, weight, own, shifts = drawn(name, 6)
    found = hidden_states(LAYERS[name][0], 1e6 * x, weight, own, *shifts)
    assert found.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), [x, *shifts]))


@pytest.mark.parametrize("name", LAYERS)
def test_a_second_backward_pass_is_refused(name: str) -> None:
    x, weight, own, shifts = drawn(name, 4)
    total = hidden_states(LAYERS[name][0], x, weight, own, *shifts).sum()
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        total.backward()


@pytest.mark.parametrize("name", LAYERS)
def test_shapes_that_do_not_fit_are_refused(name: str) -> None:
    x, weight, own, shifts = drawn(name, 4)
    with pytest.raises(ValueError, match="gates"):
        LAYERS[name][0](x, weight[:, :2], own, *shifts)
    with pytest.raises(ValueError, match="gates"):
        LAYERS[name][0](x, weight, own, *[shift[:2] for shift in shifts])
