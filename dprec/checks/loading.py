"""The batches that a loader makes: of the users that a step has drawn, and of any other users.

Accounting counts the sampler's draws, clipping bounds rows. This file checks that they agree: each batch has one row
for each user that the sampler drew for this step.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from dprec.checks.entropy import FreshWorkers, Streams
from dprec.contract import DrawsOfEach, offers
from dprec.distributed.ranks import Ranks, deal
from dprec.errors import UserError
from dprec.gradients.uses.batches import batch_tensors, select_alone, selects


class Loading:
    """Makes batches of a run's users by its loader; `transfer` moves them to the model's device.

    `holders` are objects that may hold generators, besides data set and collate function.
    """

    def __init__(
        self, loader: Any, unit: str, holders: Sequence[Any], transfer: Callable[[Any], Any] = lambda batch: batch
    ) -> None:
        _refuse_loader(loader, unit)
        self.dataset = loader.dataset
        self.unit = unit
        self._collate: Callable[[Any], Any] = loader.collate_fn
        self.sampler = loader.batch_sampler
        self.sampler.keep_draws = True
        self._loader, self.transfer = loader, transfer
        self.streams = Streams([*holders, self.dataset, self._collate])
        self._held: tuple[Any, list[tuple[int, int]]] | None = None
        self._single_batches: dict[Any, Any] | None = None  # the batches of the step's users alone, by their numbers

    def __len__(self) -> int:
        users: int = self.sampler.users
        return users

    def deal(self, ranks: Ranks) -> None:
        """Give each process its own users; random draws for a user are the same in every process."""
        deal(self.sampler, ranks)
        if ranks.size > 1 and offers(self.dataset, DrawsOfEach):
            self.dataset.draw_by(ranks.shared(secrets.randbits(128)))

    def forget_seeds(self) -> None:
        """Draw masks and augmentation from the operating system's entropy, in this process and in later workers.

        A mask that can be drawn again is no secret, and it depends on who is in the batch.
        """
        self.streams.reseed()
        first = self._loader.worker_init_fn
        if not isinstance(first, FreshWorkers):
            self._loader.worker_init_fn = FreshWorkers(first, [self._collate])
        self._loader._iterator = None  # persistent workers started earlier would keep their old seeds

    def drawn(self, step: int) -> Sequence[int]:
        """Return the users that were drawn for this step's batch, in the sampler's order; call it once a step."""
        draw = self.sampler.served()
        if draw is None or draw[0] != step:
            raise UserError(
                "batches do not come in the order they were drawn in: give the trainer a plain DataLoader, and read "
                "its batches nowhere else"
            )
        users: Sequence[int] = draw[1]
        return users

    def refuse_left(self) -> None:
        """Refuse a pass that ended before all of its draws were served."""
        if self.sampler.served() is not None:
            raise UserError(
                "a pass over the data ended before its last batch: let data set and collate_fn raise no StopIteration, "
                "as next() of an empty iterator does"
            )

    def of(self, users: Sequence[int]) -> list[Any]:
        """Return the micro-batches of these users alone, as training would get them, without empty ones."""
        whole: Any = getattr(self.dataset, "__getitems__", None)
        try:
            batch = self._collate(whole(list(users)) if whole else [self.dataset[user] for user in users])
        except UserError:
            raise
        except Exception as error:
            if users:
                raise
            raise UserError(
                f"the loader cannot make a batch of nobody, which a step may draw ({type(error).__name__}: "
                f"{str(error).splitlines()[0] if str(error) else 'no message'}): let collate_fn return [] for no rows"
            ) from error
        batch = self.transfer(batch)
        self.check(batch, users)
        return [part for part in batch if len(part)]

    def batch_of_one(self, part: Any, place: int, users: Sequence[int]) -> Any:
        """Return the batch of one user of a micro-batch alone; `users` are those of the step.

        Without `select`, a row of a batch may be padded for others' longer histories. So it is used only if the data
        gives the same row for one of the users alone.
        """
        own = select_alone(part, place)
        if selects(part):
            return own
        if self._single_batches is None:
            self._single_batches = {_numbers(made[0]): made[0] for made in (self.of([user]) for user in users) if made}
        if (there := self._single_batches.get(_numbers(own))) is not None:
            return there
        kind = type(getattr(part, "content", part)).__name__
        raise UserError(
            f"a {self.unit}'s gradient is zero or not finite in a {kind}, perhaps by others' padding: make "
            "losses(batch) finite for padding, declare padding_idx, or write select(users)"
        )

    def check(self, batch: Any, users: Sequence[int]) -> None:
        """Refuse a batch that does not have one row for each of these users."""
        if not isinstance(batch, list):
            raise UserError(
                f"a step's batch is a {type(batch).__name__}: let collate_fn return a list of micro-batches, such as "
                "[torch.stack(rows)]"
            )
        rows = sum(_rows(part) for part in batch)
        if rows != len(users):
            raise UserError(
                f"{len(users)} {self.unit}s were drawn, and their micro-batches have {rows} rows: one {self.unit} is "
                "one row; let collate_fn stack the items"
            )

    def hold(self, batch: list[Any]) -> None:
        """Keep this checked batch: it must not change before its gradient is computed."""
        self._held, self._single_batches = (batch, _versions(batch)), None

    def refuse_other(self, batch: Any) -> None:
        """Refuse a batch that is not the one that `hold` got, or was changed since."""
        if self._held is None or self._held[0] is not batch or self._held[1] != _versions(batch):
            raise UserError(
                "the gradient is asked for another batch than was drawn, or one that was changed since: change rows "
                "in the data set, collate_fn or losses(batch)"
            )

    def empty_batch(self) -> None:
        """Empty the batch after its gradient: what hooks computed from it later would get no noise."""
        if self._held is not None:
            self._held[0].clear()
            self._held = None


def same_numbers(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two lists of micro-batches hold the same numbers, up to rounding; NaN equals NaN."""
    own, others = ([t for part in parts for t in batch_tensors(part)] for parts in (one, other))
    return len(own) == len(others) and all(_equal(a, b) for a, b in zip(own, others, strict=True))


def _numbers(part: Any) -> Any:
    """Return a key of the numbers in a micro-batch: equal numbers have equal keys."""
    held = [tensor.detach().cpu().contiguous() for tensor in batch_tensors(part)]
    return tuple((t.shape, t.dtype, t.reshape(-1).view(torch.uint8).numpy().tobytes()) for t in held)


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_floating_point():  # a worker may sum in another order
        return torch.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True)
    return torch.equal(one, other)


def _rows(part: Any) -> int:
    if isinstance(part, (dict, list, tuple)) or not hasattr(part, "__len__"):
        raise UserError(
            f"a micro-batch is a {type(part).__name__}, whose length is no number of rows: make it a tensor, or a "
            "dataclass with a __len__"
        )
    if isinstance(part, Tensor) and part.dim() == 0:
        raise UserError("a micro-batch is a single number: let collate_fn return a list of tensors with a row for each")
    return len(part)


def _versions(batch: Sequence[Any]) -> list[tuple[int, int]]:
    return [(id(tensor), tensor._version) for part in batch for tensor in batch_tensors(part)]


def _refuse_loader(loader: Any, unit: str) -> None:
    """Refuse a loader that may change, reorder or hide what its sampler draws."""
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        raise UserError(
            f"training batches come from {type(loader).__name__}, which may change them: give the trainer a plain "
            "torch.utils.data.DataLoader"
        )
    if not getattr(loader, "in_order", True):
        raise UserError("the loader has in_order=False, so a batch could be another step's: leave it out")
    sampler: Any = loader.batch_sampler
    if not hasattr(sampler, "served"):
        raise UserError(
            f"{type(sampler).__name__} does not say whom it drew: give it served(), as dprec.data.PoissonBatches has it"
        )
    if hasattr(loader.dataset, "__len__") and len(loader.dataset) != sampler.users:
        raise UserError(
            f"the data set has {len(loader.dataset)} items and the sampler draws from {sampler.users} {unit}s: one "
            f"{unit} is one item; give {type(sampler).__name__} as many"
        )
