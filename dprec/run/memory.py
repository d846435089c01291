"""Freed memory stays in the process: on a small virtual machine a fresh page costs ten times a step's work on it."""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's names of what `mallopt` sets, the variable by which a person does, and what a run takes.
_TRIM, _TOP_PAD, _MMAP = -1, -2, -3
_KEPT = (
    (_TRIM, "MALLOC_TRIM_THRESHOLD_", 1 << 30),
    (_TOP_PAD, "MALLOC_TOP_PAD_", 1 << 26),
    (_MMAP, "MALLOC_MMAP_THRESHOLD_", 1 << 25),  # the most it takes: larger blocks go back
)


def keep_freed_memory() -> bool:
    """Ask the C library for this, where it can be asked and nobody has by the environment; return whether it was."""
    set_already = any(variable in os.environ for _, variable, _ in _KEPT)
    if sys.platform != "linux" or set_already or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    ask = getattr(ctypes.CDLL(None), "mallopt", None)
    if ask is None:
        return False
    answers = [ask(option, value) for option, _, value in _KEPT]
    return all(answer == 1 for answer in answers)
