"""Exponentials of many numbers on a CPU, by powers of two where those are faster.

torch asks MKL for exponentials, which on AMD's processors takes it three times as long as torch itself takes for powers
of two, 8 or 16 at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dprec_kernels.processor import mkl_is_slow

FAST = frozenset({"AVX2", "AVX512"})  # what torch computes powers of two with, many at a time


_LOG2E = 1 / math.log(2)


def exp_(values: Tensor) -> Tensor:
    """Replace values by their exponentials: by powers of two they are off by |value| / 2^24 of themselves in float32.

    What is to be taken off values is taken off before: a product with it would be rounded in proportion to itself, so
    that equal numbers would not leave 1, and a chance might be above 1.

    >>> exp_(torch.zeros(2))
    tensor([1., 1.])
    """
    return values.mul_(_LOG2E).exp2_() if _by_powers_of_two(values) else values.exp_()


def _by_powers_of_two(values: Tensor) -> bool:
    """Never a matter of how many values there are: that would let other users decide how one's are rounded."""
    fits = values.dtype in (torch.float32, torch.float64) and values.device.type == "cpu"
    return fits and mkl_is_slow() and torch.backends.cpu.get_cpu_capability() in FAST


def round_up(count: int) -> int:
    """Return of how many numbers, at least `count`, a CPU computes exponentials alike, however it divides them.

    It takes 32 at a time, and those that are left over at the end of a thread's part by another function.

    >>> round_up(1) % 32, round_up(0)
    (0, 0)
    """
    step = 32 * torch.get_num_threads()
    return -(-count // step) * step
