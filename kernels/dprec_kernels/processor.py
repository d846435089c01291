"""Facts about this processor, torch's threads, and its precision. Nothing is measured.

A measurement could have another result when a run resumes on the same processor, and sums would then differ.
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
    """Whether torch uses MKL for functions of numbers, on a processor for which MKL is not at full speed."""
    return torch.backends.mkl.is_available() and AMD in _described()


def ask_mkl_for_equal_bits() -> None:
    """Set MKL to products whose bits do not depend on a matrix's address, unless the user has set it otherwise.

    On AMD's processors MKL multiplies small matrices in another order if their address is no multiple of 16 bytes, such
    as a user's matrices in a batch. It reads the variable at its first product, and is as fast with it.
    """
    if mkl_is_slow() and "avx2" in _described():
        os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")


@cache
def mkl_is_narrow() -> bool:
    """Whether torch uses MKL for products, and MKL does not use the processor's 512-bit instructions."""
    wide = getattr(torch.cpu, "_is_avx512_supported", lambda: False)
    return mkl_is_slow() and bool(wide())


def round_up(count: int) -> int:
    """Round up to a number of exponentials that a CPU computes all in the same way, for any division among threads.

    It computes 32 at a time, and the rest of each thread's part by another function.

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
    """A context in which torch uses `count` threads.

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
    """A context that computes in the inputs' precision, with autocast disabled."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
