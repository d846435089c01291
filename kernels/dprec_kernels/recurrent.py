"""Recurrent layers whose backward pass returns the gradient at the gates of every step and user.

A weight's gradient of each user follows from it: Σ_t gradient_t inputᵀ_t, and the same with the hidden states
for the recurrent weight. Formulas and the order of the gates are those of `torch.nn.GRU` and `torch.nn.LSTM`;
every user starts from zeros.

The loops over time allocate nothing, and their backward loops are written by hand. Tensors are time-major, so that a
step's rows are one block. A backward loop needs a gate only until it knows the gate's gradient, which takes its place.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from dprec_kernels.workspace import workspace

_sigmoid_backward = torch.ops.aten.sigmoid_backward.grad_input
_tanh_backward = torch.ops.aten.tanh_backward.grad_input


def gru(inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, inner_bias: Tensor) -> Tensor:
    """Return the hidden states (T, B, h) for inputs (T, B, i), weight (3h, i) and recurrent (3h, h).

    `bias` and `inner_bias` (T, B, 3h) are one bias each, expanded, which takes no memory. They are added to the
    input's part and to the hidden state's part. Their gradients are those at the gates. Gradients flow to `inputs` and
    to them, not to the weights; the backward pass runs only once.

    >>> inputs, zero = torch.zeros(2, 1, 1), torch.zeros(3).expand(2, 1, 3)
    >>> gru(inputs, torch.ones(3, 1), torch.ones(3, 1), zero + 1, zero).flatten()  # tanh(1) (1 - σ(1)), …
    tensor([0.2048, 0.3468])
    """
    _check(inputs, weight, recurrent, 3, bias, inner_bias)
    hidden: Tensor = _GRU.apply(inputs, weight, recurrent, bias, inner_bias)
    return hidden


def lstm(inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden states (T, B, h) and the cells (T, B, h), for weight (4h, i) and recurrent (4h, h).

    `bias` (T, B, 4h) is the sum of the layer's two, expanded, which takes no memory. Its gradient is that at the gates.
    Gradients flow from the hidden states to `inputs` and to it, not to the weights; the backward pass runs only once.

    >>> inputs, zero = torch.zeros(2, 1, 1), torch.zeros(4).expand(2, 1, 4)
    >>> hidden, cells = lstm(inputs, torch.ones(4, 1), torch.ones(4, 1), zero + 1)
    >>> hidden.flatten()
    tensor([0.3696, 0.6505])
    """
    _check(inputs, weight, recurrent, 4, bias)
    hidden, cells = _LSTM.apply(inputs, weight, recurrent, bias)
    return hidden, cells


def _check(inputs: Tensor, weight: Tensor, recurrent: Tensor, gates: int, *biases: Tensor) -> None:
    wide = gates * recurrent.shape[1]
    fits = inputs.dim() == 3 and weight.shape == (wide, inputs.shape[-1]) and recurrent.shape[0] == wide
    if not fits or any(bias.shape != (*inputs.shape[:2], wide) for bias in biases):
        raise ValueError(
            f"inputs {tuple(inputs.shape)}, weight {tuple(weight.shape)}, recurrent {tuple(recurrent.shape)} and "
            f"biases {[tuple(bias.shape) for bias in biases]} do not make a layer of {gates} gates"
        )


class _GRU(torch.autograd.Function):
    # The backward pass writes the gradients over what it reads; autograd refuses to run it twice.

    @staticmethod
    def forward(
        ctx: FunctionCtx, inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, inner_bias: Tensor
    ) -> Tensor:
        hidden, gates, inner = _gru(inputs, weight, recurrent, bias, inner_bias)
        ctx.save_for_backward(hidden, gates, inner, weight, recurrent)
        return hidden

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, gates, inner, weight, recurrent = ctx.saved_tensors  # type: ignore[attr-defined]
        _gru_backward(gradient, hidden, gates, inner, recurrent)
        to_inputs = ctx.needs_input_grad[0]  # type: ignore[attr-defined]
        return (gates @ weight if to_inputs else None), None, None, gates, inner


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden, gates, cells, bent = _lstm(inputs, weight, recurrent, bias)
        ctx.save_for_backward(gates, cells, bent, weight, recurrent)
        ctx.mark_non_differentiable(cells)
        return hidden, cells

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gates, cells, bent, weight, recurrent = ctx.saved_tensors  # type: ignore[attr-defined]
        _lstm_backward(gradient, gates, cells, bent, recurrent)
        to_inputs = ctx.needs_input_grad[0]  # type: ignore[attr-defined]
        return (gates @ weight if to_inputs else None), None, None, gates


def _gru(
    inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, inner_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the hidden states (T, B, h), the gates (T, B, 3h) and the hidden states' part in them (T, B, 3h)."""
    gates = _from_inputs(inputs, weight, bias)
    inner = torch.empty_like(gates)
    width = recurrent.shape[1]
    hidden = gates.new_empty(*gates.shape[:2], width)
    resets, updates, candidates = _steps(gates, *[width] * 3)
    switches, _ = _steps(gates, 2 * width, width)
    inner_switches, inner_candidates = _steps(inner, 2 * width, width)
    states, transposed = hidden.unbind(0), recurrent.T
    before = torch.zeros_like(hidden[0])
    for t, state in enumerate(states):
        torch.addmm(inner_bias[t], before, transposed, out=inner[t])
        switches[t].add_(inner_switches[t]).sigmoid_()
        candidates[t].addcmul_(resets[t], inner_candidates[t]).tanh_()
        before = torch.lerp(candidates[t], before, updates[t], out=state)
    return hidden, gates, inner


def _gru_backward(gradient: Tensor, hidden: Tensor, gates: Tensor, inner: Tensor, recurrent: Tensor) -> None:
    """Write over `gates` and `inner` the gradients of what was added up in them, from that of the hidden states."""
    width = hidden.shape[2]
    resets, updates, candidates = _steps(gates, *[width] * 3)
    switches, _ = _steps(gates, 2 * width, width)
    inner_switches, inner_candidates = _steps(inner, 2 * width, width)
    total, carried, pull = _scratch("total", hidden), _scratch("carried", hidden), _scratch("pull", hidden)
    total.copy_(gradient[-1])
    start = torch.zeros_like(hidden[0])
    for t in reversed(range(len(hidden))):
        reset, update, candidate, inner_candidate = resets[t], updates[t], candidates[t], inner_candidates[t]
        before = hidden[t - 1] if t else start
        torch.mul(total, update, out=carried)
        torch.sub(before, candidate, out=pull).mul_(total)
        _sigmoid_backward(pull, update, grad_input=update)
        torch.sub(total, carried, out=pull)
        _tanh_backward(pull, candidate, grad_input=candidate)
        torch.mul(candidate, inner_candidate, out=pull)
        torch.mul(candidate, reset, out=inner_candidate)
        _sigmoid_backward(pull, reset, grad_input=reset)
        inner_switches[t].copy_(switches[t])
        if t:
            carried.add_(gradient[t - 1]).addmm_(inner[t], recurrent)
            total, carried = carried, total


def _lstm(inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the hidden states (T, B, h), the gates (T, B, 4h), the cells (T, B, h) and their tanh."""
    gates = _from_inputs(inputs, weight, bias)
    width = recurrent.shape[1]
    hidden, cells, bent = (gates.new_empty(*gates.shape[:2], width) for _ in range(3))
    adds, keeps, candidates, shows = _steps(gates, *[width] * 4)
    switches, _ = _steps(gates, 2 * width, 2 * width)
    before = cell = torch.zeros_like(hidden[0])
    transposed = recurrent.T
    for t, gate in enumerate(gates.unbind(0)):
        if t:
            gate.addmm_(before, transposed)
        switches[t].sigmoid_()
        candidates[t].tanh_()
        shows[t].sigmoid_()
        cell = torch.mul(keeps[t], cell, out=cells[t]).addcmul_(adds[t], candidates[t])
        before = torch.mul(shows[t], torch.tanh(cell, out=bent[t]), out=hidden[t])
    return hidden, gates, cells, bent


def _lstm_backward(gradient: Tensor, gates: Tensor, cells: Tensor, bent: Tensor, recurrent: Tensor) -> None:
    """Write over `gates` the gradients of what was added up in them, from that of the hidden states."""
    adds, keeps, candidates, shows = _steps(gates, *[cells.shape[2]] * 4)
    total, cell, pull = _scratch("total", cells), _scratch("cell", cells).zero_(), _scratch("pull", cells)
    start = torch.zeros_like(cells[0])
    for t in reversed(range(len(cells))):
        add, keep, candidate, show = adds[t], keeps[t], candidates[t], shows[t]
        if t + 1 < len(cells):
            torch.addmm(gradient[t], gates[t + 1], recurrent, out=total)
        else:
            total.copy_(gradient[t])
        torch.mul(total, show, out=pull)
        cell.add_(_tanh_backward(pull, bent[t], grad_input=pull))
        _sigmoid_backward(total.mul_(bent[t]), show, grad_input=show)
        torch.mul(cell, candidate, out=pull)
        torch.mul(cell, add, out=total)
        _sigmoid_backward(pull, add, grad_input=add)
        _tanh_backward(total, candidate, grad_input=candidate)
        torch.mul(cell, cells[t - 1] if t else start, out=pull)
        cell.mul_(keep)
        _sigmoid_backward(pull, keep, grad_input=keep)


def _from_inputs(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    gates = torch.addmm(bias.flatten(0, 1), inputs.flatten(0, 1), weight.T)
    return gates.view(bias.shape)


def _steps(gates: Tensor, *widths: int) -> list[tuple[Tensor, ...]]:
    """Cut gates (T, B, sum of widths) into parts, and each part into its steps."""
    return [part.unbind(0) for part in gates.split(widths, dim=2)]


def _scratch(name: str, like: Tensor) -> Tensor:
    """Return memory for one step of `like`, which later backward loops reuse."""
    return workspace.take(f"recurrent {name}", like.shape[1:], like)
