"""Functions that saturate, whose gradient is then as exact as anywhere else.

Autograd takes the slope of `sigmoid`, `tanh` and `softmax` from their values, by 1 less a number of nearly 1, of which
only rounding is left: it depends on the shapes of the batch and so on others. Here what is left to 1 is computed by
itself, and `1 - sigmoid` and the cross-entropy of a `sigmoid` are taken from it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

_ATTRIBUTE = "_dprec_sigmoid"
_DTYPES = (torch.float32, torch.float64)  # of less no digits are promised


class _Sigmoid(torch.autograd.Function):
    """σ(x) and σ(-x), which is 1 - σ(x) in all digits."""

    @staticmethod
    def forward(ctx: FunctionCtx, scores: Tensor) -> tuple[Tensor, Tensor]:
        chance, rest = scores.sigmoid(), scores.neg().sigmoid_()
        ctx.save_for_backward(chance, rest)
        ctx.set_materialize_grads(False)
        return chance, rest

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor | None, of_rest: Tensor | None) -> Tensor | None:  # type: ignore[override]
        chance, rest = ctx.saved_tensors  # type: ignore[attr-defined]
        if gradient is None:
            return None if of_rest is None else -of_rest * (chance * rest)
        return (gradient if of_rest is None else gradient - of_rest) * (chance * rest)


class _Tanh(torch.autograd.Function):
    """tanh(x), and its slope 4 e^(-2|x|) / (1 + e^(-2|x|))²."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> tuple[Tensor, Tensor]:
        result, left = x.tanh(), x.abs().mul_(-2.0).exp_()
        slope = left.mul(4.0).div_((1.0 + left).square_())
        ctx.save_for_backward(result, slope)
        ctx.set_materialize_grads(False)
        return result, slope

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor | None, of_slope: Tensor | None) -> Tensor | None:  # type: ignore[override]
        result, slope = ctx.saved_tensors  # type: ignore[attr-defined]
        own = None if gradient is None else gradient * slope
        if of_slope is None:  # as always, unless a gradient is differentiated
            return own
        bend = of_slope * (-2.0 * result * slope)
        return bend if own is None else own + bend


class _Softmax(torch.autograd.Function):
    """Of gradients that are alike at all places nothing is left, so those are taken less the likeliest one's."""

    @staticmethod
    def forward(ctx: FunctionCtx, scores: Tensor, dim: int) -> Tensor:
        chances = scores.softmax(dim)
        ctx.save_for_backward(chances)
        ctx.dim = dim  # type: ignore[attr-defined]
        return chances

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (chances,) = ctx.saved_tensors  # type: ignore[attr-defined]
        dim: int = ctx.dim  # type: ignore[attr-defined]
        weighted = chances * (gradient - gradient.gather(dim, chances.argmax(dim, keepdim=True)))
        return torch.addcmul(weighted, chances, weighted.sum(dim, keepdim=True), value=-1.0), None


def _exact(tensor: Any) -> bool:
    known = isinstance(tensor, Tensor) and tensor.dtype in _DTYPES and tensor.numel() > 0
    return known and tensor.requires_grad and torch.is_grad_enabled()


def sigmoid(given: Mapping[str, Any]) -> Tensor | None:
    """Return σ(x), which knows σ(-x) from here on; None: torch's own is as good."""
    scores = given["input"]
    if not _exact(scores) or given.keys() != {"input"}:
        return None
    return _sigmoid(scores)


def _sigmoid(scores: Tensor) -> Tensor:
    chance, rest = _Sigmoid.apply(scores)
    setattr(chance, _ATTRIBUTE, (scores, scores._version, rest))
    return chance  # type: ignore[no-any-return]


def scores_of(chance: Tensor) -> Tensor | None:
    """Return x of a tensor that is σ(x), or a view of one, if neither was changed since.

    >>> chance = sigmoid({"input": torch.zeros(2, 1, requires_grad=True)})
    >>> scores_of(chance.squeeze(1))
    tensor([0., 0.], grad_fn=<AsStridedBackward0>)
    """
    whole = chance if hasattr(chance, _ATTRIBUTE) else chance._base
    if whole is None or not hasattr(whole, _ATTRIBUTE) or whole._version:
        return None
    scores, version, _ = getattr(whole, _ATTRIBUTE)
    if scores._version != version or scores.stride() != whole.stride() or not scores.is_contiguous():
        return None
    if chance is whole:
        return scores  # type: ignore[no-any-return]
    start = scores.storage_offset() - whole.storage_offset()
    return scores.as_strided(chance.shape, chance.stride(), chance.storage_offset() + start)  # type: ignore[no-any-return]


def tanh(given: Mapping[str, Any]) -> Tensor | None:
    """Return tanh(x)."""
    if not _exact(given["input"]) or given.keys() != {"input"}:
        return None
    return _Tanh.apply(given["input"])[0]  # type: ignore[no-any-return]


def softmax(given: Mapping[str, Any]) -> Tensor | None:
    """Return the softmax along one dimension."""
    scores, dim, dtype = given["input"], given.get("dim"), given.get("dtype")
    if not isinstance(dim, int) or "out" in given or not _exact(scores) or not scores.dim():
        return None
    if dtype is not None and dtype not in _DTYPES:
        return None
    return _Softmax.apply(scores if dtype is None else scores.to(dtype), dim)  # type: ignore[no-any-return]


def less_than_one(given: Mapping[str, Any]) -> Tensor | None:
    """Return 1 - σ(x), which is σ(-x)."""
    chance, one = given["input"], given.get("other")
    if type(one) not in (int, float) or one != 1 or given.keys() != {"input", "other"} or not _exact(chance):
        return None
    scores = scores_of(chance)
    return None if scores is None else _sigmoid(-scores)


def one_less(given: Mapping[str, Any]) -> Tensor | None:
    """Return it of torch.sub(1, σ(x))."""
    return less_than_one({**given, "input": given.get("other"), "other": given["input"]})
