"""What processes of benchmarks do with freed memory: keep it where time is measured, give it back where memory is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

# On a small virtual machine a fresh page costs 13 µs, ten times the work of a step on it. These settings keep freed
# memory in the process, for every system. The C library reads them once, when the process starts.
KEEP = {"MALLOC_TOP_PAD_": str(1 << 26), "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0"}
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}


def environment(memory: Mapping[str, str], threads: int = 1) -> dict[str, str]:
    """Return the environment of another process that imports what this one does; `memory` is all that its C library is
    told."""
    others = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    path = os.pathsep.join(filter(None, sys.path))
    return {**others, **memory, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}


def keep_memory() -> None:
    """Restart this process once, with an allocator that keeps freed memory, and one thread."""
    wanted = KEEP | {"OMP_NUM_THREADS": "1"}
    if sys.platform == "linux" and any(os.environ.get(key) != value for key, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | wanted)
