"""Which process writes, prints and keeps a run's folder, where each runs the whole command."""

from __future__ import annotations

import os

# torchrun, Lightning and SLURM number processes so, and Lightning's users their machines.
NUMBERS = ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "SLURM_PROCID")


def first_process() -> bool:
    """Whether this process is the first of its run, or the only one; processes need not be connected yet."""
    return all(os.environ.get(name, "0") in ("0", "") for name in NUMBERS)
