"""A library that torch brings, for float32: by as many threads as torch has, in few shapes.

It compiles each shape when it first meets it, which takes longer than a product, and no two batches have the same. So
rows of a batch go to it in blocks of few shapes, or with rows of zeros, and MKL gets what is left over.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor

from dprec_kernels.workspace import workspace

LEAST = 1 << 21  # multiplications of a block from which on a call pays: it takes 10 µs by itself
MOST = 1 << 12  # rows of a block
STEP = 16  # at least, between two numbers of rows
PRECISION_VARIABLES, STRICT = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"), "STRICT"


@cache
def exists() -> bool:
    """Whether this torch has its product, and nobody has told it to compute float32 in less."""
    strict = all(os.environ.get(name, STRICT).upper() == STRICT for name in PRECISION_VARIABLES)
    return torch.backends.mkldnn.is_available() and _operation() is not None and strict


def fits(left: Tensor, right: Tensor) -> bool:
    """Whether it multiplies these; a right matrix with gaps would take it a thousand times as long."""
    enough = left.numel() * right.shape[1] >= LEAST
    plain = left.dtype == right.dtype == torch.float32 and left.device.type == "cpu"
    plain = plain and left.layout == right.layout == torch.strided
    return enough and plain and (right.is_contiguous() or right.T.is_contiguous())


def whole(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right, of a shape that comes often."""
    return _onednn(left, right.T)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left (N, k) @ right (k, m) to a total."""
    done = 0
    for rows in _blocks(len(left), right):
        total[rows].add_(_onednn(left[rows], right.T))
        done = rows.stop
    if done < len(left):
        total[done:].addmm_(left[done:], right)


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return left (N, k) @ right (k, m), in `out` if that is given."""
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


def _operation() -> Any:
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _onednn(left: Tensor, right: Tensor) -> Tensor:
    """Return left @ right.T."""
    result: Tensor = _operation().default(left, right, None, "none", [], "")
    return result
