"""The length of a run in steps, and the step from which its loader draws."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from dprec.errors import UserError

if TYPE_CHECKING:
    import pytorch_lightning as pl


def planned_steps(max_steps: int, max_epochs: float | None, batches: Any) -> int:
    """Return how many steps a run takes: `max_steps`, or those of `max_epochs`; if both are given, the fewer.

    A pass is rarely a whole number of steps: a user is drawn `max_epochs` times in expectation, and a run has at least
    one step. Negative numbers and None count as not given.

    >>> from dprec.data import PoissonBatches
    >>> draws = PoissonBatches(users=100, expected_batch=8)
    >>> planned_steps(-1, 2, draws), planned_steps(7, 2, draws), planned_steps(7, None, draws)
    (25, 7, 7)
    """
    given = [max_steps] if max_steps >= 0 else []
    if max_epochs is not None and max_epochs >= 0:
        given.append(max(1, batches.steps(max_epochs)))
    if not given:
        raise UserError("the length of training is not given: set trainer.max_epochs or trainer.max_steps, at least 1")
    return min(given)


def steps_of(trainer: pl.Trainer) -> int:
    """Return how many steps a Lightning trainer plans, by the data's sampler or by Lightning's own count."""
    batches: Any = getattr(getattr(trainer, "datamodule", None), "batches", None)
    if batches is None:
        if trainer.train_dataloader is None:  # a schedule is made before the loader
            trainer.fit_loop.setup_data()
        batches = getattr(trainer.train_dataloader, "batch_sampler", None)
    if not hasattr(batches, "steps"):
        batches = SimpleNamespace(steps=lambda epochs: int(trainer.estimated_stepping_batches))
    elif (limit := trainer.limit_train_batches) not in (None, 1.0):  # steps of a pass, or a share of them
        each = min(limit, len(batches)) if isinstance(limit, int) else int(limit * len(batches))
        batches = SimpleNamespace(steps=lambda epochs: int(epochs * each))
    return planned_steps(trainer.max_steps, trainer.max_epochs, batches)


def draw_from(trainer: pl.Trainer, step: int) -> None:
    """Let the training loader draw from this step on: its workers may have drawn batches ahead.

    Workers are also started again, so that they use the present `worker_init_fn` of the loader.
    """
    loader, fetcher = trainer.train_dataloader, trainer.fit_loop._data_fetcher
    sampler: Any = getattr(loader, "batch_sampler", None)
    if hasattr(sampler, "step"):
        sampler.step = step
    if isinstance(loader, DataLoader) and loader.num_workers and fetcher is not None:
        loader._iterator = None  # stops persistent workers
        iter(fetcher)
