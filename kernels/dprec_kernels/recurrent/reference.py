"""The plain truth: one step after the other as on paper, differentiable by autograd in everything."""

from __future__ import annotations

import torch
from torch import Tensor


def gru(inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor, inner_bias: Tensor) -> Tensor:
    """Return the hidden states (T, B, h)."""
    hidden = [inputs.new_zeros(inputs.shape[1], recurrent.shape[1])]
    for x, shift, inner_shift in zip(inputs, bias, inner_bias, strict=True):
        outer, inner = x @ weight.T + shift, hidden[-1] @ recurrent.T + inner_shift
        (reset, update, candidate), (inner_reset, inner_update, inner_candidate) = outer.chunk(3, 1), inner.chunk(3, 1)
        reset, update = torch.sigmoid(reset + inner_reset), torch.sigmoid(update + inner_update)
        candidate = torch.tanh(candidate + reset * inner_candidate)
        hidden.append((1 - update) * candidate + update * hidden[-1])
    return torch.stack(hidden[1:])


def lstm(inputs: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return the hidden states and the cells, (T, B, h) each."""
    hidden, cells = ([inputs.new_zeros(inputs.shape[1], recurrent.shape[1])] for _ in range(2))
    for x, shift in zip(inputs, bias, strict=True):
        add, keep, candidate, show = (x @ weight.T + hidden[-1] @ recurrent.T + shift).chunk(4, 1)
        cells.append(torch.sigmoid(keep) * cells[-1] + torch.sigmoid(add) * torch.tanh(candidate))
        hidden.append(torch.sigmoid(show) * torch.tanh(cells[-1]))
    return torch.stack(hidden[1:]), torch.stack(cells[1:])
