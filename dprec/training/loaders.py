"""Loaders whose draws can be accounted for, of any data set with one item per user."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset, default_collate

from dprec.contract import Drawable, UserData, refuse_without
from dprec.data.draws.poisson import UserBatches, user_batches
from dprec.errors import UserError, meant, refuse_other_kinds
from dprec.training.micro_batches import MicroBatches


def private_loader(
    data: Drawable,
    expected_batch: int | None = None,
    collate_fn: Callable[[Any], Any] | None = None,
    max_users: int | None = None,
    tokens: int | None = None,
    sampling: str = "poisson",
    sampling_seed: int | None = None,
    unit: str = "user",
    **options: Any,
) -> DataLoader[Any]:
    """Return a loader that draws every user with the same probability, a step's users in a list of micro-batches.

    Args:
        data: a data set of which each item is all of one user, or a DataLoader of one, whose collate function,
            workers and batch size are kept. A loader whose batch sampler states its law is returned as it is.
        expected_batch: users in a step, on average.
        collate_fn: makes a batch of some items, as in any DataLoader; torch's own by default.
        max_users: users of a micro-batch at most: less memory, the same step.
        tokens: the same, in users times their longest item.
        sampling: "poisson", or "shuffle" for batches of a fixed size, whose privacy is not amplified by sampling.
        sampling_seed: repeatable draws, and so no privacy.
        unit: what an item is: "user", or "record" where a user may have several.
        options: those of DataLoader, such as num_workers.
    """
    refuse_other_kinds(private_loader, locals())
    for name in options.keys() - signature(DataLoader).parameters.keys():
        raise UserError(f"a loader has no option '{name}': {meant(name, private_loader, DataLoader)}")
    if isinstance(data, DataLoader):
        cut = {"expected_batch": expected_batch, "collate_fn": collate_fn, "max_users": max_users, "tokens": tokens}
        law: dict[str, Any] = {"sampling": sampling, "sampling_seed": sampling_seed, "unit": unit}
        said = {name: value for name, value in cut.items() if value is not None}
        if hasattr(data.batch_sampler, "served"):
            said |= {name: value for name, value in law.items() if value != USUAL[name]} | options
            if said:
                raise UserError(f"the loader draws and cuts batches itself, so leave out {next(iter(said))}")
            return data
        kept: dict[str, Any] = {name: getattr(data, name) for name in KEPT}
        kept |= {"expected_batch": data.batch_size, "collate_fn": data.collate_fn}
        return private_loader(data.dataset, **kept | said | law | options)
    advice = "give a data set with one item per user"
    if isinstance(data, IterableDataset):
        raise UserError(f"{type(data).__name__} is read in its own order, so no user can be drawn from it: {advice}")
    refuse_without(data, UserData, advice)
    if expected_batch is None:
        raise UserError("how many users a step has is not said: give expected_batch")
    users = cast(Any, data)
    if len(users) and not 1 <= expected_batch <= len(users):
        raise UserError(
            f"expected_batch is {expected_batch} and the data has {len(users)} {unit}s: give 1 to {len(users)}"
        )
    for name in FIXED & options.keys():
        raise UserError(f"{name} is decided by the draws: leave it out")
    draws: UserBatches = user_batches(sampling, len(users), expected_batch, sampling_seed, unit)
    collate = MicroBatches(default_collate if collate_fn is None else collate_fn, max_users, tokens, expected_batch)
    return DataLoader(users, batch_sampler=draws, collate_fn=collate, **options)


KEPT = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "persistent_workers")
USUAL = {"sampling": "poisson", "sampling_seed": None, "unit": "user"}
FIXED = {"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "generator"}
