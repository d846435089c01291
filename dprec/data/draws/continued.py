"""Lets a loader draw from a given step on, as a resumed run needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    import pytorch_lightning as pl


def draw_from(trainer: pl.Trainer, step: int) -> None:
    """Let the training loader draw from this step on, because its workers may have drawn batches before.

    Workers are also started again, so that they use the present `worker_init_fn` of the loader.
    """
    loader, fetcher = trainer.train_dataloader, trainer.fit_loop._data_fetcher
    sampler: Any = getattr(loader, "batch_sampler", None)
    if hasattr(sampler, "step"):
        sampler.step = step
    if isinstance(loader, DataLoader) and loader.num_workers and fetcher is not None:
        loader._iterator = None  # stops persistent workers
        iter(fetcher)
