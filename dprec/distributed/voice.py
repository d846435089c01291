"""One line for an error of a run, whichever of its processes has it."""

from __future__ import annotations

from time import monotonic, sleep
from typing import Any

import torch.distributed as dist

from dprec.distributed.ending import leave
from dprec.distributed.ranks import Lost
from dprec.errors import Told, UserError

KEY = "dprec's first error"
PATIENCE = 1.0  # seconds, for what the process that ended has to say


def one_voice(error: Exception, after_a_loss: str) -> Exception:
    """Return what this process has to say of an error: the first process speaks for all that are connected.

    `after_a_loss` says how to go on where another process ended without a word.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return error
    lost = isinstance(error, (Lost, dist.DistError)) or (isinstance(error, RuntimeError) and "gloo" in str(error))
    if not lost and not isinstance(error, UserError):
        return error
    store: Any = dist.distributed_c10d._get_default_store()
    try:
        if dist.get_rank():
            if not lost:
                store.set(KEY, f"process {dist.get_rank()}: {error}")
            return Told(str(error))
        if lost:
            until = monotonic() + PATIENCE
            while monotonic() < until:
                if store.check([KEY]):
                    return UserError(store.get(KEY).decode())
                sleep(0.05)
    except RuntimeError:  # the first process, which keeps the store, is gone
        pass
    finally:
        if lost:
            leave(error)
    return Lost(f"another process of the run was killed or does not answer: {after_a_loss}") if lost else error
