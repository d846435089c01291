"""numpy's library for products: any shape, in one call, by one thread."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dprec_kernels.paths import by_numpy

LEAST = 1 << 11  # numbers of the right matrix from which a call is faster: the call itself takes 6 µs
ROWS = 32  # of a left matrix: from so many on, a row's bits did not depend on their number in measurements
WIDE = frozenset({"SkylakeX", "Cooperlake", "SapphireRapids"})  # kinds of processor that have 512-bit instructions


def fits(left: Tensor, right: Tensor) -> bool:
    """Whether it is faster for these matrices, or stacks of them.

    This must not depend on the number of rows or matrices: otherwise other users would decide a user's rounding.
    """
    alike = by_numpy(left) and left.dtype is right.dtype and left.dtype in (torch.float32, torch.float64)
    return alike and right.shape[-2] * right.shape[-1] >= LEAST and _lies(left) and _lies(right)


def product_of_rows(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Write left (N, k) @ right (k, m) to `out`, each row with the same bits for any number N."""
    rows = left.shape[0]
    if rows >= ROWS:
        return product(left, right, out)
    more = left.new_zeros(ROWS, left.shape[1])
    more[:rows] = left
    return out.copy_(product(more, right, out.new_empty(ROWS, right.shape[1]))[:rows])


@np.errstate(all="ignore")  # numbers that are not finite are in the result, as with torch
def product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """Write left (…, n, k) @ right (…, k, m) to `out`."""
    with _one_thread():
        np.matmul(_seen(left), _seen(right), out=out.numpy())
    return out


@cache
def is_wide() -> bool:
    """Whether it uses 512-bit instructions here, which OPENBLAS_CORETYPE can forbid."""
    return _ask("corename", ctypes.c_char_p, lambda: b"")().decode() in WIDE


def _lies(matrix: Tensor) -> bool:
    """Whether rows or columns of a plain tensor have no gaps inside and do not overlap."""
    if type(matrix) not in (Tensor, nn.Parameter) or matrix.layout is not torch.strided:
        return False
    if matrix.is_neg():
        return False
    rows, columns = matrix.shape[-2:]
    down, right = matrix.stride()[-2:]
    return rows > 1 and columns > 1 and ((right == 1 and down >= columns) or (down == 1 and right >= rows))


def _seen(matrix: Tensor) -> Any:
    return (matrix.detach() if matrix.requires_grad else matrix).numpy()


class _OneThread:
    """A context in which OpenBLAS has one thread: its other threads would wait busily, as torch's would."""

    def __init__(self) -> None:
        self._inside, self._before, self._lock = 0, 1, threading.Lock()
        self._count = _ask("num_threads", ctypes.c_int, lambda: 1)
        self._set = _library("set_num_threads", lambda number: None)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._leave)

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = self._count()
                if self._before != 1:
                    self._set(1)
            self._inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._before != 1:
                self._set(self._before)

    def _leave(self) -> None:
        """Reset the state of other threads, which a forked process does not have."""
        self._lock = threading.Lock()
        if self._inside:
            self._inside = 0
            if self._before != 1:
                self._set(self._before)


@cache
def _one_thread() -> _OneThread:
    return _OneThread()


def _ask(name: str, kind: Any, otherwise: Callable[[], Any]) -> Callable[[], Any]:
    found = _library(f"get_{name}", otherwise)
    found.restype = kind  # type: ignore[attr-defined]
    return found


def _library(name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of OpenBLAS, whose names depend on the build; `otherwise` if numpy uses another library."""
    try:
        umath = getattr(np, "_core", None) or np.core
        loaded = ctypes.PyDLL(umath._multiarray_umath.__file__)
    except (AttributeError, OSError):
        return otherwise
    for before in ("scipy_", ""):
        for after in ("64_", ""):
            if hasattr(loaded, f"{before}openblas_{name}{after}"):
                return getattr(loaded, f"{before}openblas_{name}{after}")
    return otherwise
