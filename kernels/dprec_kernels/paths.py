"""Which path an operation takes, decided here alone: Triton's kernels, numpy, or torch's own operations."""

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
    """Whether Triton's kernels take this tensor, as far as its device says."""
    return TRITON and tensor.device.type in GPUS


def fast(operation: str, tensor: Tensor, fits: bool = True) -> ModuleType:
    """Return the fast path of an operation, a package of this one: `triton` for a tensor on a GPU, else `pieces`.

    `fits` says whether the operation's kernel can take what it is given.

    >>> fast("dprec_kernels.sample_norms", torch.zeros(1)).__name__
    'dprec_kernels.sample_norms.pieces'
    """
    return _module(f"{operation}.{'triton' if fits and on_gpu(tensor) else 'pieces'}")


_module = cache(importlib.import_module)


def by_numpy(tensor: Tensor) -> bool:
    """Whether numpy sees the tensor's memory, and may be asked where it is faster than torch.

    Not `host_readable`: a device may answer at once and hold memory that numpy does not see.
    """
    return tensor.device.type == "cpu"


def host_readable(tensor: Tensor) -> bool:
    """Whether Python may ask what a tensor holds without waiting for a device to come to it.

    Where it may not, what may turn out to be needless is done all the same: that costs less than the question.
    """
    return tensor.device.type == "cpu"


def lies_plainly(tensor: Tensor, *dtypes: torch.dtype) -> bool:
    """Whether a tensor has one of these types, by default float32, and no gaps, as the kernels of tables want it."""
    return tensor.dtype in (dtypes or (torch.float32,)) and tensor.is_contiguous()
