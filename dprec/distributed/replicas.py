"""Lightning's strategies for several processes: which of them a run can have, and what they leave to the run's step.

Lightning starts, numbers and connects the processes. Its reducer adds up gradients of whole batches as they come out of
backward passes; a run adds up what each process clipped, so the reducer is left out, and its buffers with it.
"""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING, Any

from torch import nn

from dprec.distributed.ending import end_together, leave
from dprec.distributed.ranks import ALONE, Ranks, group_of
from dprec.errors import UserError
from dprec.lightning import kinds

if TYPE_CHECKING:
    import pytorch_lightning as pl


def refuse_strategy(trainer: pl.Trainer) -> None:
    """Refuse ways to train in several processes that no private step can be taken in."""
    strategy: Any = trainer.strategy
    name = type(strategy).__name__
    if isinstance(strategy, kinds("strategies.SingleDeviceStrategy")):
        return
    if not isinstance(strategy, kinds("strategies.DDPStrategy")):
        raise UserError(
            f"trainer.strategy cannot be {name}: to clip a user's whole gradient, each process must hold all "
            "parameters; use ddp"
        )
    if strategy._ddp_comm_hook is not None or strategy._ddp_comm_state is not None:
        raise UserError(
            "trainer.strategy cannot have ddp_comm_hook: a hook or a compression would see or change sums before they "
            "have their noise; use plain ddp"
        )
    if strategy._model_averaging_period is not None:
        raise UserError(
            "trainer.strategy cannot have model_averaging_period: all processes take the same step each time; use "
            "plain ddp"
        )
    if strategy._start_method != "popen":
        raise UserError(
            f"trainer.strategy cannot start processes by {strategy._start_method}: what they spend would stay on "
            "record in them alone; use ddp"
        )
    if strategy._layer_sync is not None:
        raise UserError("trainer.sync_batchnorm cannot be set: it mixes users; use a layer without running statistics")


def leave_to_the_step(trainer: pl.Trainer) -> None:
    """Let Lightning neither add up gradients nor deal users to processes; both are the run's to do.

    Nor may it talk to the other processes whenever a signal comes.
    """
    strategy: Any = trainer.strategy
    if hasattr(strategy, "configure_ddp"):
        strategy.configure_ddp = _nothing
        trainer._accelerator_connector.use_distributed_sampler = False
    if trainer.world_size > 1:
        end_together(trainer)
        atexit.register(leave)


def ranks_of(trainer: pl.Trainer) -> Ranks:
    """Return the processes that a trainer trains in."""
    return group_of(trainer.strategy.root_device) if trainer.world_size > 1 else ALONE


def _nothing() -> None:
    return None


def begin_alike(module: nn.Module, ranks: Ranks) -> None:
    """Give the module what the first process's holds, as a replicated module of torch's would."""
    for tensor in (*module.parameters(), *module.buffers()) if ranks.size > 1 else ():
        ranks.from_first_(tensor)
