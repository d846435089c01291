"""Losses of what a model is nearly sure of, whose gradient is then as exact as anywhere else.

The gradient of a cross-entropy is a chance less 1. Of a chance of nearly 1 only rounding is left, which depends on the
shapes of the batch and so on others. The sum of all other chances is the same number, and keeps its digits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from dprec.gradients.uses import saturation
from dprec.gradients.uses.arguments import Instead, at_least_float32


class _LogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, scores: Tensor, dim: int) -> Tensor:
        result = scores.log_softmax(dim)
        ctx.save_for_backward(result)
        ctx.dim = dim  # type: ignore[attr-defined]
        return result

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (result,) = ctx.saved_tensors  # type: ignore[attr-defined]
        dim: int = ctx.dim  # type: ignore[attr-defined]
        chances, likeliest = result.exp(), result.argmax(dim, keepdim=True)
        slope = gradient - chances * gradient.sum(dim, keepdim=True)
        # Of the likeliest alone, 1 - chance may be rounding.
        own, chance = gradient.gather(dim, likeliest), chances.gather(dim, likeliest)
        others = chances.scatter(dim, likeliest, 0.0).sum(dim, keepdim=True)
        rest = gradient.scatter(dim, likeliest, 0.0).sum(dim, keepdim=True)
        return slope.scatter_(dim, likeliest, own * others - chance * rest), None


def log_softmax(scores: Tensor, dim: int) -> Tensor:
    """Return log softmax(scores), whose gradient is exact for chances of nearly 1, too.

    >>> scores = torch.tensor([20.0, 0.0], requires_grad=True)
    >>> log_softmax(scores, 0)[0].backward()
    >>> print(scores.grad)  # plain float32 gives 0 for the first
    tensor([ 2.0612e-09, -2.0612e-09])
    """
    if not scores.numel() or not scores.dim():
        return scores.log_softmax(dim)
    result: Tensor = _LogSoftmax.apply(at_least_float32(scores), dim)
    return result


def _log_softmax(given: Mapping[str, Any]) -> Tensor | None:
    dim, dtype = given.get("dim"), given.get("dtype")
    if dim is None or (dtype is not None and dtype.itemsize < 4):
        return None
    scores: Tensor = given["input"]
    if dtype is not None:
        return log_softmax(scores.to(dtype), dim)
    return _in_precision(log_softmax(scores, dim), scores)


REDUCED: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda each: each, "mean": Tensor.mean, "sum": Tensor.sum}


def _in_precision(result: Tensor, *given: Tensor) -> Tensor:
    """Return a result as torch's own function returns it: as wide as what was given, but under autocast."""
    if torch.is_autocast_enabled(result.device.type):
        return result
    return result.to(functools.reduce(torch.promote_types, (each.dtype for each in given)))


def _cross_entropy(given: Mapping[str, Any]) -> Tensor | None:
    scores, target = given["input"], given["target"]
    old = given.get("size_average") is not None or given.get("reduce") is not None
    if old or given.get("label_smoothing"):
        return None
    if target.is_floating_point():
        return _of_shares(given)
    logs = log_softmax(scores, min(1, scores.dim() - 1))
    rest = {name: given[name] for name in ("ignore_index", "reduction") if name in given}
    weight = given.get("weight")
    return _in_precision(F.nll_loss(logs, target, None if weight is None else weight.to(logs.dtype), **rest), scores)


def _of_shares(given: Mapping[str, Any]) -> Tensor | None:
    """Return the cross-entropy of targets that are a share of each class, such as 1 of one."""
    scores, reduction = given["input"], given.get("reduction", "mean")
    if given.get("weight") is not None or reduction not in REDUCED or not scores.numel():
        return None
    dim = min(1, scores.dim() - 1)
    return _in_precision(REDUCED[reduction](-(log_softmax(scores, dim) * given["target"]).sum(dim)), scores)


def _binary_cross_entropy(given: Mapping[str, Any]) -> Tensor | None:
    scores, target, reduction = given["input"], given["target"], given.get("reduction", "mean")
    old = given.get("size_average") is not None or given.get("reduce") is not None
    if old or target.shape != scores.shape or reduction not in REDUCED:
        return None
    wide, more, weight = at_least_float32(scores), given.get("pos_weight"), given.get("weight")
    clicked = -F.logsigmoid(wide) * target
    each = (clicked if more is None else clicked * more) - F.logsigmoid(-wide) * (1 - target)
    each = each if weight is None else each * weight
    return _in_precision(REDUCED[reduction](each), scores, target)


def _of_chances(given: Mapping[str, Any]) -> Tensor | None:
    """Return the cross-entropy of σ(x) as that of x."""
    scores = saturation.scores_of(given["input"])
    return None if scores is None else _binary_cross_entropy({**given, "input": scores})


_OF_LOGS = ("input", "dim", "_stacklevel", "dtype")
_OF_METHOD = ("input", "dim", "dtype")
_OF_CLASSES = (
    "input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing",
)  # fmt: skip
_OF_CLICKS = ("input", "target", "weight", "size_average", "reduce", "reduction", "pos_weight")
SURE: dict[Callable[..., Any], Instead] = {
    F.cross_entropy: (_OF_CLASSES, _cross_entropy),
    F.binary_cross_entropy_with_logits: (_OF_CLICKS, _binary_cross_entropy),
    F.log_softmax: (_OF_LOGS, _log_softmax),
    torch.log_softmax: (_OF_METHOD, _log_softmax),
    torch.special.log_softmax: (_OF_METHOD, _log_softmax),
    Tensor.log_softmax: (_OF_METHOD, _log_softmax),
    F.binary_cross_entropy: (_OF_CLICKS[:-1], _of_chances),
    F.softmax: (_OF_LOGS, saturation.softmax),
    **dict.fromkeys((torch.softmax, torch.special.softmax, Tensor.softmax), (_OF_METHOD, saturation.softmax)),
    **dict.fromkeys((torch.sigmoid, torch.special.expit, Tensor.sigmoid), (("input",), saturation.sigmoid)),
    **dict.fromkeys((torch.tanh, Tensor.tanh), (("input",), saturation.tanh)),
    **dict.fromkeys((torch.rsub, Tensor.__rsub__), (("input", "other"), saturation.less_than_one)),
    torch.sub: (("input", "other"), saturation.one_less),
}
