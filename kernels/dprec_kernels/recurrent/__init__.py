"""Recurrent layers whose backward pass leaves the gradient at the gates of every step and user.

That is all a weight's gradient of each user needs: Σ_t gradient_t inputᵀ_t, and the same with the hidden states
for the recurrent weight. Formulas and the order of the gates are those of `torch.nn.GRU` and `torch.nn.LSTM`;
every user starts from zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from dprec_kernels.recurrent import pieces, reference

__all__ = ["gru", "lstm", "pieces", "reference"]


def gru(inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, inner_bias: Tensor) -> Tensor:
    """Return the hidden states (T, B, h) for inputs (T, B, i), weight (3h, i) and recurrent (3h, h).

    `bias` and `inner_bias` (T, B, 3h) are one bias each, expanded, which takes no memory: they are added to what
    comes from the input and from the hidden state. Their gradients are those at the gates. Gradients flow to
    `inputs` and to them, not to the weights, and once.

    >>> inputs, zero = torch.zeros(2, 1, 1), torch.zeros(3).expand(2, 1, 3)
    >>> gru(inputs, torch.ones(3, 1), torch.ones(3, 1), zero + 1, zero).flatten()  # tanh(1) (1 - σ(1)), …
    tensor([0.2048, 0.3468])
    """
    _check(inputs, weight, recurrent, 3, bias, inner_bias)
    hidden: Tensor = _GRU.apply(inputs, weight, recurrent, bias, inner_bias)
    return hidden


def lstm(inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden states (T, B, h) and the cells (T, B, h), for weight (4h, i) and recurrent (4h, h).

    `bias` (T, B, 4h) is the sum of the layer's two, expanded, which takes no memory. Its gradient is that at the
    gates. Gradients flow from the hidden states to `inputs` and to it, not to the weights, and once.

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
        hidden, gates, inner = pieces.gru(inputs, weight, recurrent, bias, inner_bias)
        ctx.save_for_backward(hidden, gates, inner, weight, recurrent)
        return hidden

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, gates, inner, weight, recurrent = ctx.saved_tensors  # type: ignore[attr-defined]
        pieces.gru_backward(gradient, hidden, gates, inner, recurrent)
        to_inputs = ctx.needs_input_grad[0]  # type: ignore[attr-defined]
        return (gates @ weight if to_inputs else None), None, None, gates, inner


class _LSTM(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        hidden, gates, cells, bent = pieces.lstm(inputs, weight, recurrent, bias)
        ctx.save_for_backward(gates, cells, bent, weight, recurrent)
        ctx.mark_non_differentiable(cells)
        return hidden, cells

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        gates, cells, bent, weight, recurrent = ctx.saved_tensors  # type: ignore[attr-defined]
        pieces.lstm_backward(gradient, gates, cells, bent, recurrent)
        to_inputs = ctx.needs_input_grad[0]  # type: ignore[attr-defined]
        return (gates @ weight if to_inputs else None), None, None, gates
