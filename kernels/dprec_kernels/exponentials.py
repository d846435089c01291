"""Exponentials of many numbers on a CPU, by powers of two where those are faster.

torch asks MKL for exponentials, which on AMD's processors takes it three times as long as torch itself takes for powers
of two, 8 or 16 at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dprec_kernels.processor import mkl_is_slow

LEAST = 1 << 13  # numbers from which on two passes cost less than one
FAST = frozenset({"AVX2", "AVX512"})  # what torch computes powers of two with, many at a time


def exp_(values: Tensor) -> Tensor:
    """Replace values by their exponentials: by powers of two they are off by |value| / 2^24 of themselves in float32.

    >>> exp_(torch.zeros(2))
    tensor([1., 1.])
    """
    return values.mul_(1 / math.log(2)).exp2_() if _by_powers_of_two(values) else values.exp_()


def _by_powers_of_two(values: Tensor) -> bool:
    many = values.numel() >= LEAST and values.dtype in (torch.float32, torch.float64) and values.device.type == "cpu"
    return many and mkl_is_slow() and torch.backends.cpu.get_cpu_capability() in FAST
