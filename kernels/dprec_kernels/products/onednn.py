"""A library that torch brings, for float32: by as many threads as torch has, in few shapes.

It compiles each shape when it first meets it, which takes longer than a product, and no two batches have the same. So
it gets a few rows of zeros more, such that there are few shapes. A row of its result has the same bits however many
there are.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dprec_kernels.workspace import workspace

LEAST = 1 << 12  # numbers of the right matrix from which on a call pays: it takes 10 µs by itself
STEP = 16  # at least, between two numbers of rows
PRECISION_VARIABLES, STRICT = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"), "STRICT"


@cache
def exists() -> bool:
    """Whether this torch has its product, and nobody has told it to compute float32 in less."""
    strict = all(os.environ.get(name, STRICT).upper() == STRICT for name in PRECISION_VARIABLES)
    return torch.backends.mkldnn.is_available() and _operation() is not None and strict


def fits(left: Tensor, right: Tensor) -> bool:
    """Whether it multiplies these; a right matrix with gaps would take it a thousand times as long.

    Never a matter of how many rows there are: that would let other users decide how one's are rounded.
    """
    enough = right.numel() >= LEAST and left.numel() > 0
    plain = left.dtype == right.dtype == torch.float32 and left.device.type == "cpu"
    plain = plain and left.layout == right.layout == torch.strided
    return enough and plain and (right.is_contiguous() or right.T.is_contiguous())


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return left (N, k) @ right (k, m), in `out` if that is given. Rows of zeros make N one of few numbers."""
    count, more = len(left), _rounded(len(left))
    if count == more:
        found = _onednn(left, right.T)
    else:
        padded = workspace.take("left of a product", (more, left.shape[1]), left)
        padded[:count] = left
        padded[count:] = 0.0
        found = _onednn(padded, right.T).resize_(count, right.shape[1])  # no view, so that it may be changed in place
    return found if out is None else out.copy_(found)


def _rounded(count: int) -> int:
    """Round up to a multiple of `STEP`, or of an eighth of the power of two below.

    >>> [_rounded(count) for count in (1, 33, 100, 257, 1000)]
    [16, 48, 112, 288, 1024]
    """
    step = max(STEP, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _operation() -> Any:
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _onednn(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right.T."""
    result: Tensor = _operation().default(left, right, None, "none", [], "")
    return result
