"""How processes end: on SIGTERM all after the same step, so that they can save the run together, and always cleanly."""

from __future__ import annotations

import traceback
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from dprec.distributed.ranks import Lost, group_of
from dprec.errors import AlreadyReported, UserError
from dprec.lightning import beside

if TYPE_CHECKING:
    import pytorch_lightning as pl


class Ending:
    """Whether SIGTERM has come to this process, and before each step, whether it has come to any.

    Lightning's own handler broadcasts at once, in the middle of whatever exchange the others are in, and all wait for
    one another. So the handler only takes a note here, and the processes add up their notes between two steps.
    """

    def __init__(self, trainer: pl.Trainer) -> None:
        self._trainer = trainer
        self._asked = False

    def note(self, *_: object) -> None:
        self._asked = True

    def agree(self) -> None:
        if group_of(self._trainer.strategy.root_device).total(int(self._asked)):
            raise beside(self._trainer, "utilities.exceptions.SIGTERMException")


def end_together(trainer: pl.Trainer) -> None:
    """Let one `Ending` do what Lightning does on SIGTERM, and what it does before each step of several processes."""
    signals: Any = trainer._signal_connector
    ending = Ending(trainer)
    signals._sigterm_notifier_fn = ending.note
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = ending.agree  # type: ignore[method-assign]


def leave(error: BaseException | None = None) -> None:
    """Let gloo's threads end before Python does: one that still lets go of an exchange then aborts the process."""
    if not (dist.is_initialized() and dist.get_backend() == "gloo"):
        return
    while error is not None:  # their frames hold the group
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    dist.destroy_process_group()


# One line for an error of a run, whichever of its processes has it.


KEY = "dprec's first error"
PATIENCE = 1.0  # seconds, for what the process that ended has to say


def report_once(error: Exception, after_a_loss: str) -> Exception:
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
            return AlreadyReported(str(error))
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
