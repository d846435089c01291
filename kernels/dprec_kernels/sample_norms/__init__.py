"""Squared norms of every user's gradient, from inputs and output gradients, without building the gradients."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from dprec_kernels.paths import fast
from dprec_kernels.sample_norms.pieces import prefers_gram

__all__ = ["linear", "prefers_gram", "rows"]


def linear(left: Tensor, right: Tensor) -> Tensor:
    """Return (B,) squared norms of a linear map's gradients Σ_t left_t rightᵀ_t, in float64.

    left (B, T, outputs) is the gradient of the map's output, right (B, T, inputs) its input. If terms cancel, the
    norm's error may be a few roundings of Σ_t ‖left_t‖ ‖right_t‖.

    >>> import torch
    >>> linear(torch.ones(1, 3, 2), torch.ones(1, 3, 2))  # four entries, each 3
    tensor([36.], dtype=torch.float64)
    """
    if left.shape[:2] != right.shape[:2]:
        raise ValueError(f"left {tuple(left.shape)} and right {tuple(right.shape)} must agree in users and positions")
    norms: Tensor = _fast(left).linear(left.detach(), right.detach())
    return norms


def rows(ids: Tensor, values: Tensor) -> Tensor:
    """Return (B,) squared norms of the gradients of a table that is read by id, in float64.

    values (B, N, *rest) is the gradient of what ids (B, N) read; a bag's value is repeated for each of its ids.
    Reads of the same row by the same user add up before they are squared.

    >>> import torch
    >>> rows(torch.tensor([[4, 7, 4]]), torch.tensor([[[1.0], [1.0], [1.0]]]))  # 2² + 1²
    tensor([5.], dtype=torch.float64)
    """
    if values.shape[:2] != ids.shape:
        raise ValueError(f"values {tuple(values.shape)} must hold one value for each of ids {tuple(ids.shape)}")
    norms: Tensor = _fast(values).rows(ids, values.detach())
    return norms


def _fast(values: Tensor) -> ModuleType:
    return fast(__name__, values, values.dtype.itemsize <= 4)
