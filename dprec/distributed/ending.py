"""How processes end: on SIGTERM all after the same step, so that they can save the run together, and always cleanly."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from dprec.distributed.ranks import group_of
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
