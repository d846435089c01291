"""Restarts the process so that the kernel's work on fresh memory does not count as time of a step."""

from __future__ import annotations

import os
import sys

# On a small virtual machine a fresh page costs 13 µs, ten times the work of a step on it. These settings keep freed
# memory in the process, for every system. The C library reads them once, when the process starts.
KEEP = {"MALLOC_TOP_PAD_": str(1 << 26), "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0"}


def keep_memory() -> None:
    """Restart this process once, with an allocator that keeps freed memory, and one thread."""
    wanted = KEEP | {"OMP_NUM_THREADS": "1"}
    if sys.platform == "linux" and any(os.environ.get(key) != value for key, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | wanted)
