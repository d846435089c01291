"""Products of float32 matrices on a CPU, by the faster of the two libraries that torch brings for them.

MKL, which torch asks by itself, leaves the 512-bit instructions of AMD's processors alone, and so half their speed.
oneDNN takes them. It compiles each shape when it first meets it, which takes longer than a product, and no two batches
have the same. So rows of a batch go to it in blocks of few shapes, or with rows of zeros, and MKL gets what is left
over. A sum over one user's positions is left to MKL whole: its number of positions would be a shape of its own, and
where a sum is cut must not hang on where the positions stand among others'.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from dprec_kernels.workspace import workspace

LEAST = 1 << 21  # multiplications of a block from which on a call of oneDNN pays: it takes 10 µs by itself
MOST = 1 << 12  # rows of a block
STEP = 16  # at least, between two numbers of rows
AMD = "AuthenticAMD"
PRECISION_VARIABLES, STRICT = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"), "STRICT"


def multiply(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Write left (N, k) @ right (k, m) to `out`, for any number N.

    >>> multiply(torch.ones(2, 3), torch.ones(3, 1), torch.empty(2, 1))
    tensor([[3.],
            [3.]])
    """
    return _product(left, right, out) if _fits(left, right) else torch.mm(left, right, out=out)


def add_multiplied(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left (N, k) @ right (k, m) to a total of the same type, for any number N."""
    done = 0
    for rows in _blocks(len(left), right) if _fits(left, right) else ():
        total[rows].add_(_onednn(left[rows], right.T))
        done = rows.stop
    if done < len(left):
        total[done:].addmm_(left[done:], right)


def summed_transposed(left: Tensor, right: Tensor, out: Tensor, often: int) -> Tensor:
    """Return Σ_n right_n leftᵀ_n in `out` or in memory of its own; `often` is the number N that most calls have."""
    if len(left) == often and often * out.numel() >= LEAST and _may(left, right):
        return _onednn(right.T, left.contiguous().T)
    return torch.mm(right.T, left, out=out)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x (N, i) times weight (o, i) and a bias (o,); torch does it where either of them needs a gradient.

    >>> affine(torch.ones(1, 2), torch.ones(1, 2), torch.ones(1))
    tensor([[3.]])
    """
    given = [x, weight] if bias is None else [x, weight, bias]
    # A subclass of Tensor may have a linear map of its own, and torch says what is wrong with other types and sizes.
    plain = all(type(each) in (Tensor, nn.Parameter) and each.dtype == x.dtype for each in given)
    fits = plain and [each.dim() for each in given] == [2, 2, 1][: len(given)] and x.shape[1] == weight.shape[1]
    trained = any(each.requires_grad for each in given[1:])
    if not fits or trained or torch.is_autocast_enabled(x.device.type) or not _fits(x, weight.T):
        return F.linear(x, weight, bias)
    result: Tensor = _Affine.apply(x, weight, bias)
    return result


class _Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _product(x, weight.T) if bias is None else _product(x, weight.T).add_(bias)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (weight,) = ctx.saved_tensors  # type: ignore[attr-defined]
        by_torch = torch.is_grad_enabled() or not _fits(gradient, weight)  # somebody may differentiate the gradient
        return gradient @ weight if by_torch else _product(gradient, weight), None, None


@cache
def onednn_is_faster() -> bool:
    """Whether this processor is one that MKL does not take at full speed, which is known before anything is measured.

    A measurement could come out one way now, and the other way when the run is resumed on the same processor: its sums
    would be others.
    """
    wide = getattr(torch.cpu, "_is_avx512_supported", lambda: False)
    return has_onednn() and torch.backends.mkl.is_available() and AMD in _processor() and bool(wide())


def has_onednn() -> bool:
    """Whether this torch has oneDNN's product, and nobody has told it to compute float32 in less."""
    strict = all(os.environ.get(name, STRICT).upper() == STRICT for name in PRECISION_VARIABLES)
    return torch.backends.mkldnn.is_available() and _operation() is not None and strict


def _processor() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:  # elsewhere than on Linux
        return platform.processor()


def _operation() -> Any:
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _fits(left: Tensor, right: Tensor) -> bool:
    """Whether oneDNN multiplies these; a right matrix with gaps would take it a thousand times as long."""
    enough = left.numel() * right.shape[1] >= LEAST
    return enough and _may(left, right) and (right.is_contiguous() or right.T.is_contiguous())


def _may(left: Tensor, right: Tensor) -> bool:
    plain = left.dtype == right.dtype == torch.float32 and left.device.type == "cpu"
    return plain and onednn_is_faster() and bool(torch.backends.mkldnn.enabled)


def _product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    if left.shape[1] <= right.shape[1]:  # a copy of the left matrix costs less than one of the result
        found = _padded(left, right)
        return found if out is None else out.copy_(found)
    return _in_blocks(left, right, left.new_empty(len(left), right.shape[1]) if out is None else out)


def _padded(left: Tensor, right: Tensor) -> Tensor:
    """Return the product; rows of zeros are added first where their number is not `_rounded`."""
    count, more = len(left), _rounded(len(left))
    if count == more:
        return _onednn(left, right.T)
    padded = workspace.take("left of a product", (more, left.shape[1]), left)
    padded[:count] = left
    padded[count:] = 0.0
    return _onednn(padded, right.T).resize_(count, right.shape[1])  # no view, so that it may be changed in place


def _in_blocks(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    done = 0
    for rows in _blocks(len(left), right):
        out[rows] = _onednn(left[rows], right.T)
        done = rows.stop
    if done < len(left):
        torch.mm(left[done:], right, out=out[done:])
    return out


def _rounded(count: int) -> int:
    """Round up to a multiple of `STEP`, or of an eighth of the power of two below.

    >>> [_rounded(count) for count in (1, 33, 100, 257, 1000)]
    [16, 48, 112, 288, 1024]
    """
    step = max(STEP, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _blocks(rows: int, each: Tensor) -> Iterator[slice]:
    """Yield slices of rows from the first on whose lengths are powers of two; each row is so many multiplications.

    >>> [block.stop - block.start for block in _blocks(3400, torch.empty(64, 64))]
    [2048, 1024]
    >>> [block.stop - block.start for block in _blocks(250, torch.empty(64, 2048))]
    [128, 64, 32, 16]
    """
    start, size = 0, MOST
    while size and size * each.numel() >= LEAST:
        while start + size <= rows:
            yield slice(start, start + size)
            start += size
        size //= 2


def _onednn(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right.T."""
    result: Tensor = _operation().default(left, right, None, "none", [], "")
    return result
