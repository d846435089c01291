"""Loaders whose draws can be accounted for, and the micro-batches that a collate function makes of a draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from inspect import signature
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, IterableDataset, default_collate

from dprec.contract import Drawable, Losses, UserData, refuse_without
from dprec.data.draws.buckets import Buckets
from dprec.data.draws.poisson import UserBatches, user_batches
from dprec.errors import UserError, meant, refuse_other_kinds
from dprec.gradients.layouts.layout import tensors_in
from dprec.gradients.uses.batches import batch_tensors


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
            workers and batch size are kept. A loader whose batch sampler states how it draws is returned as it is.
        expected_batch: users in a step, on average.
        collate_fn: makes a batch of some items, as in any DataLoader; torch's own by default.
        max_users: users of a micro-batch at most: less memory, the same step.
        tokens: the same limit, as users times their longest item.
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
        raise UserError("a data set does not tell how many users a step expects: give expected_batch")
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


@dataclass
class WrappedBatch:
    """A micro-batch that has no length of its own: a tuple, list or mapping of tensors with a row for each user.

    >>> part = WrappedBatch((torch.zeros(3, 2), torch.ones(3)))
    >>> len(part)
    3
    """

    content: Any

    def __len__(self) -> int:
        return next((len(tensor) for tensor in tensors_in([self.content]) if tensor.dim()), 0)

    def __iter__(self) -> NoReturn:
        raise _no_content()

    def __getitem__(self, _: Any) -> NoReturn:
        raise _no_content()

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> NoReturn:
        raise _no_content()


def _no_content() -> UserError:
    return UserError(
        "a batch is a list of micro-batches, each with what collate_fn made as its .content: give training.step(batch) "
        "the whole batch unchanged"
    )


class OfContent:
    """Calls the losses with the content of a loader's micro-batch, which may be a `WrappedBatch`."""

    def __init__(self, losses: Losses) -> None:
        self.__wrapped__ = losses

    def __call__(self, part: Any) -> Tensor:
        return self.__wrapped__(part.content if isinstance(part, WrappedBatch) else part)


class MicroBatches:
    """A loader's collate function: cuts the drawn users' items into groups, and collates each by your function.

    Args:
        collate: makes a batch of some items, as in any loader.
        max_users: users of a micro-batch at most.
        tokens: users times the longest of them at most, where items have a length: that of their longest tensor or
            list. Longest first, so that little of a micro-batch is padding.
        expected: users in a step, on average.

    Items of several lengths are grouped by bucket (`dprec.data.draws.buckets`). If your collate function pads them by
    `pad_rows`, the shape of a user's row does not depend on the other users drawn.
    """

    def __init__(
        self,
        collate: Callable[[Any], Any],
        max_users: int | None = None,
        tokens: int | None = None,
        expected: float = 1000,
    ) -> None:
        self._buckets = Buckets(expected)
        for name, value in (("max_users", max_users), ("tokens", tokens)):
            if value is not None and value < 1:
                raise UserError(f"{name} is {value}: give a micro-batch at least 1")
        self.collate, self.max_users, self.tokens = collate, max_users, tokens

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        return [_counted(self.collate([items[place] for place in group])) for group in self._groups(items)]

    def _groups(self, items: Sequence[Any]) -> list[Sequence[int]]:
        lengths = np.array([_length(item) for item in items], dtype=np.int64)
        if self.tokens is None and len(set(lengths.tolist())) > 1:
            groups = self._buckets.groups(lengths, 2**62, self.max_users)
        elif self.tokens is not None:
            groups = self._buckets.groups(lengths, self.tokens, self.max_users)
        else:
            most = self.max_users or max(1, len(items))
            return [range(start, min(start + most, len(items))) for start in range(0, len(items), most)]
        return [rows.tolist() for rows, _ in groups]


def to_device(part: Any, device: torch.device) -> Any:
    """Return a micro-batch on this device."""
    if isinstance(part, WrappedBatch):
        return WrappedBatch(tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, part.content))
    return part.to(device) if hasattr(part, "to") else part


def _counted(batch: Any) -> Any:
    """Return the collated batch; wrap it if its length is not its number of users."""
    if isinstance(batch, Tensor) or (is_dataclass(batch) and hasattr(batch, "__len__")):
        return batch
    if isinstance(batch, Mapping) and not isinstance(batch, dict):
        batch = dict(batch)  # a tokenizer's, say
    if not batch_tensors(batch):
        raise UserError(
            f"collate_fn returns a {type(batch).__name__} without tensors: return a tensor with one row per user, or "
            "a tuple, list, mapping or dataclass of such"
        )
    return WrappedBatch(batch)


def _length(item: Any) -> int:
    """Return the length of the longest tensor or list in an item."""
    if isinstance(item, Tensor):
        return len(item) if item.dim() else 1
    if isinstance(item, Mapping):
        return max(map(_length, item.values()), default=1)
    if isinstance(item, np.ndarray):
        return len(item) if item.ndim else 1
    if isinstance(item, list) and not (item and isinstance(item[0], (Tensor, np.ndarray, list, Mapping))):
        return len(item)
    return max(map(_length, item), default=1) if isinstance(item, (tuple, list)) else 1
