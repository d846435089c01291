"""Products of float32 matrices on a CPU, by the faster of the two libraries that torch brings for them.

MKL, which torch asks by itself, leaves the 512-bit instructions of AMD's processors alone, and so half their speed.
oneDNN takes them. It gives no gradients, and its results lie in memory of their own.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

LEAST = 1 << 21  # multiplications from which on a call of oneDNN pays: it takes 10 µs by itself
COPIED = 2  # times as many, where the left matrix does not lie row by row, as oneDNN takes it
AMD = "AuthenticAMD"
LESS, STRICT = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"), "STRICT"  # variables of oneDNN


def multiplied(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Return left @ right, in `out` or in other memory.

    >>> multiplied(torch.ones(2, 3), torch.ones(3, 1), torch.empty(2, 1))
    tensor([[3.],
            [3.]])
    """
    return _onednn(left, right.T) if _pays(left, right) else torch.mm(left, right, out=out)


def add_multiplied(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to a total of the same type."""
    if _pays(left, right):
        total.add_(_onednn(left, right.T))
    else:
        total.addmm_(left, right)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x (N, i) weight (o, i) and a bias, with a gradient for x alone unless torch has to do it.

    >>> affine(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1))
    tensor([[3.]])
    """
    trained = weight.requires_grad or (bias is not None and bias.requires_grad)
    if trained or torch.is_autocast_enabled(x.device.type) or not _pays(x, weight.T):
        return F.linear(x, weight, bias)
    result: Tensor = _Affine.apply(x, weight, bias)
    return result


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (weight,) = ctx.saved_tensors  # type: ignore[attr-defined]
        again = torch.is_grad_enabled()  # somebody differentiates the gradient
        own = gradient @ weight if again or not _pays(gradient, weight) else _onednn(gradient, weight.T)
        return own, None, None


@cache
def onednn_is_faster() -> bool:
    """Whether this processor is one that MKL does not take at full speed, which is known before anything is measured.

    A measurement could come out one way now and the other way in a run that is resumed, whose sums would be others.
    """
    wide = getattr(torch.cpu, "_is_avx512_supported", lambda: False)
    return has_onednn() and torch.backends.mkl.is_available() and AMD in _processor() and bool(wide())


def has_onednn() -> bool:
    """Whether this torch has oneDNN's product, and nobody has told it to compute float32 in less."""
    strict = all(os.environ.get(name, STRICT).upper() == STRICT for name in LESS)
    return torch.backends.mkldnn.is_available() and _ops() is not None and strict


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    return told.read_text() if told.is_file() else platform.processor()


def _ops() -> Any:
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _pays(left: Tensor, right: Tensor) -> bool:
    least = LEAST if left.is_contiguous() else COPIED * LEAST
    if left.shape[0] * left.shape[1] * right.shape[1] < least or left.device.type != "cpu":
        return False
    # A right matrix with gaps takes it a thousand times as long.
    plain = left.dtype == right.dtype == torch.float32 and (right.is_contiguous() or right.T.is_contiguous())
    return plain and onednn_is_faster()


def _onednn(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return left @ right.T + bias."""
    result: Tensor = _ops().default(left, right, bias, "none", [], "")
    return result
