"""What is known of this processor before anything is measured.

A measurement could come out one way now, and the other way when a run is resumed on the same processor: its sums would
be others.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch

AMD = "AuthenticAMD"


@cache
def mkl_is_slow() -> bool:
    """Whether torch asks MKL for functions of numbers, on a processor that MKL does not take at full speed."""
    return torch.backends.mkl.is_available() and AMD in _described()


@cache
def mkl_is_narrow() -> bool:
    """Whether torch asks MKL for products, and MKL leaves 512-bit instructions alone that are there."""
    wide = getattr(torch.cpu, "_is_avx512_supported", lambda: False)
    return mkl_is_slow() and bool(wide())


@cache
def torch_has_no_vectors() -> bool:
    """Whether torch has, or was told, to compute without vector instructions here; numpy chooses for itself."""
    return platform.machine() in ("x86_64", "AMD64") and torch.backends.cpu.get_cpu_capability() == "DEFAULT"


def _described() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:  # elsewhere than on Linux
        return platform.processor()
