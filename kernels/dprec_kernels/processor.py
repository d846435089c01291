"""What is known of this processor before anything is measured, how many threads torch has, and in what it computes.

A measurement could come out one way now, and the other way when a run is resumed on the same processor: its sums would
be others.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch

AMD = "AuthenticAMD"


@cache
def mkl_is_slow() -> bool:
    """Whether torch asks MKL for functions of numbers, on a processor that MKL does not take at full speed."""
    return torch.backends.mkl.is_available() and AMD in _described()


def ask_mkl_for_equal_bits() -> None:
    """Ask MKL for products whose bits do not depend on where in memory a matrix lies, unless the user has asked.

    On AMD's processors it multiplies small matrices in another order where they lie on no multiple of 16 bytes, and so
    where a user's do in a batch. It reads the variable at its first product, and is as fast with it.
    """
    if mkl_is_slow() and "avx2" in _described():
        os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")


@cache
def mkl_is_narrow() -> bool:
    """Whether torch asks MKL for products, and MKL leaves 512-bit instructions alone that are there."""
    wide = getattr(torch.cpu, "_is_avx512_supported", lambda: False)
    return mkl_is_slow() and bool(wide())


def round_up(count: int) -> int:
    """Return of how many numbers, at least `count`, a CPU computes exponentials alike, however it divides them.

    It takes 32 at a time, and those that are left over at the end of a thread's part by another function.

    >>> round_up(1) % 32, round_up(0)
    (0, 0)
    """
    step = 32 * torch.get_num_threads()
    return -(-count // step) * step


def _described() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:  # elsewhere than on Linux
        return platform.processor()


@contextmanager
def of_threads(count: int) -> Iterator[None]:
    """Let torch use so many threads.

    >>> before = torch.get_num_threads()
    >>> with of_threads(1):
    ...     print(torch.get_num_threads())
    1
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    with of_threads(1):
        yield


def in_full(device: str) -> AbstractContextManager[Any]:
    """Compute in the precision of what is given, whatever autocast is on."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
