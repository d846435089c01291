"""Decides, here alone, which path an operation takes: Triton's kernels, numpy, or torch's own operations."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None
GPUS = frozenset({"cuda"})  # device types whose tensors Triton's kernels take


def on_gpu(tensor: Tensor) -> bool:
    """Whether this tensor's device is one for Triton's kernels."""
    return TRITON and tensor.device.type in GPUS


def fast(operation: str, tensor: Tensor, fits: bool = True) -> ModuleType:
    """Return the fast path of an operation (a sub-package): `triton` for a tensor on a GPU, otherwise `pieces`.

    `fits` tells whether the operation's kernel supports the arguments.

    >>> fast("dprec_kernels.sample_norms", torch.zeros(1)).__name__
    'dprec_kernels.sample_norms.pieces'
    """
    return _module(f"{operation}.{'triton' if fits and on_gpu(tensor) else 'pieces'}")


_module = cache(importlib.import_module)


def by_numpy(tensor: Tensor) -> bool:
    """Whether numpy can access the tensor's memory, and may be used if it is faster than torch.

    This differs from `host_readable`: a device may answer at once although numpy cannot access its memory.
    """
    return tensor.device.type == "cpu"


def host_readable(tensor: Tensor) -> bool:
    """Whether Python can read a tensor's values without waiting for a device.

    If not, possibly needless work is done all the same: that costs less than reading.
    """
    return tensor.device.type == "cpu"


def lies_plainly(tensor: Tensor, *dtypes: torch.dtype) -> bool:
    """Whether a tensor has one of these dtypes, by default float32, and no gaps, as the kernels for tables require."""
    return tensor.dtype in (dtypes or (torch.float32,)) and tensor.is_contiguous()
