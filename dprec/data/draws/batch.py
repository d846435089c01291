"""The inputs of a model: micro-batches of users or records for training, and batches for ranking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

B = TypeVar("B", bound="Batch")

# Not frozen: Lightning's precision plugins write the tensors they convert back into the batch.


class Batch:
    """A dataclass of tensors; row i of each belongs only to user, person or record i."""

    own_length = True  # whether only a row's own length decides its padding

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def __len__(self) -> int:
        return next(value.shape[0] for value in vars(self).values() if isinstance(value, Tensor))

    def to(self: B, device: torch.device | str, **options: Any) -> B:
        return self._with({name: tensor.to(device, **options) for name, tensor in self.tensors.items()})

    def select(self: B, chosen: Sequence[int] | Tensor) -> B:
        """Return the batch of only these rows, in this order, without padding that only other rows needed."""
        rows = chosen if isinstance(chosen, Tensor) else list(chosen)
        taken = {name: tensor[rows] for name, tensor in self.tensors.items()}
        if self.own_length:
            return self._with(taken)
        ends = [slice(None), *(slice(max(1, width)) for width in self._with(taken)._widths())]
        return self._with({name: tensor[tuple(ends[: tensor.dim()])] for name, tensor in taken.items()})

    def _widths(self) -> tuple[int, ...]:
        """Return the used width of the second dimension, and of the third if it is padded too."""
        return ()

    def _with(self: B, tensors: dict[str, Tensor]) -> B:
        made: B = replace(self, **tensors)  # type: ignore[type-var]  # a subclass is a dataclass
        return made


@dataclass
class SequenceBatch(Batch):
    """Users' histories for training; row u of every tensor belongs only to user u.

    Item ids start at 1; 0 is padding, on the right.

    Attributes:
        history: (B, T) int64: the items that a model reads, oldest first.
        targets: (B, T) int64: the item that follows each position, 0 where there is none.
        context: (B, T, C) int64: what is known of each event of the history, if the data has context.
        weights: (B, T) float32: how much the loss of each target counts, if the data has weights.
        own_length: whether each row's own length decides how far it is padded.

    >>> import torch
    >>> from dprec.data import SequenceBatch
    >>> batch = SequenceBatch(history=torch.tensor([[3, 1, 0]]), targets=torch.tensor([[1, 2, 0]]))
    >>> len(batch), batch.empty
    (1, tensor([False]))
    """

    history: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64: the item that follows each position, 0 where there is none
    # (B, T, C) int64: the values of C columns, from 1; 0 where one is missing, and for the padding. Of a target none
    context: Tensor | None = None
    weights: Tensor | None = None  # (B, T) of targets
    own_length: bool = field(default=False, kw_only=True)

    @property
    def empty(self) -> Tensor:
        """(B,) True for users without a history: with privacy they add nothing to a step."""
        return (self.history == 0).all(1)

    def _widths(self) -> tuple[int, ...]:
        return (_most((self.history != 0).sum(1)),)


@dataclass
class RankingBatch(Batch):
    """Users' histories, and for each the held-out items to rank: one, or several. What `Recommender.scores` reads.

    Attributes:
        history: (B, T) int64: the most recent items, oldest first, right-padded with 0.
        target: (B,) int64; or (B, K): each user's distinct items, the missing ones 0.
        seen: (B, S) int64: every item the user saw before the target, padded with 0, repeats allowed.
        context: (B, T, C) int64: what is known of each event of the history, if the data has context.

    >>> import torch
    >>> from dprec.data import RankingBatch
    >>> batch = RankingBatch(history=torch.tensor([[3, 1]]), target=torch.tensor([2]), seen=torch.tensor([[5, 3, 1]]))
    >>> len(batch)
    1
    """

    history: Tensor  # (B, T) int64: the most recent items, right-padded with 0
    target: Tensor  # (B,) int64; or (B, K): each user's distinct items, the missing ones 0
    seen: Tensor  # (B, S) int64: every item the user saw before the target, padded with 0, repeats allowed
    context: Tensor | None = None  # (B, T, C) int64, as in `SequenceBatch`


@dataclass
class ClickBatch(Batch):
    """Records of a click log; row i of every tensor belongs only to record i.

    Attributes:
        numbers: (B, D) float32: counts, 0 where missing; some logs have a few negative ones.
        categories: (B, F, P) int64: the ids of each of F features, repeats allowed, -1 where a bag is shorter.
        clicked: (B,) float32: 0 or 1.

    >>> import torch
    >>> from dprec.data import ClickBatch
    >>> batch = ClickBatch(torch.tensor([[3.0], [0.0]]), torch.tensor([[[2]], [[0]]]), torch.tensor([1.0, 0.0]))
    >>> len(batch), batch.select([1]).clicked
    (2, tensor([0.]))
    """

    numbers: Tensor  # (B, D) float32: counts, 0 where missing; some logs have a few negative ones
    categories: Tensor  # (B, F, P) int64: the ids of each of F features, repeats allowed, -1 where a bag is shorter
    clicked: Tensor  # (B,) float32: 0 or 1


@dataclass
class TextBatch(Batch):
    """Texts, or pairs of texts, in tokens; row i of every tensor belongs only to record i. Padding is on the right.

    Attributes:
        ids: (B, T) int64: the tokens.
        segments: (B, T) int64: 0, and 1 for the second text of a pair.
        mask: (B, T) int64: 1 for tokens, 0 for padding.
        label: (B,) int64: the class, from 0.
        own_length: whether each row's own length decides how far it is padded.

    >>> import torch
    >>> from dprec.data import TextBatch
    >>> batch = TextBatch(*(torch.tensor([[1, 1], [1, 0]]),) * 3, torch.tensor([0, 1]))
    >>> len(batch), batch.select([1]).ids.tolist(), batch.select([1]).label.tolist()
    (2, [[1]], [1])
    """

    ids: Tensor  # (B, T) int64
    segments: Tensor  # (B, T) int64: 0, and 1 for the second text of a pair
    mask: Tensor  # (B, T) int64: 1 for tokens, 0 for padding
    label: Tensor  # (B,) int64
    own_length: bool = field(default=False, kw_only=True)

    def _widths(self) -> tuple[int, ...]:
        return (_most(self.mask.sum(1)),)


class OfPeople(Batch):
    """A batch of people's records, in places that may be empty; a person's records come first."""

    record: ClassVar[type[Any]]  # the class of a batch of records with the same tensors
    nothing: ClassVar[Mapping[str, float]] = {}  # fill values for empty places, by tensor; 0 by default
    present: Tensor  # (B, R) bool: where there is a record

    @classmethod
    def padded(cls, records: Any, present: np.ndarray | Tensor, own_length: bool = False, **fill: float) -> Any:
        """Put records, one person after the other, into the places where `present` (B, R) is True.

        `fill` gives fill values for the other places, by tensor; others are those of `nothing`.
        """
        where, fill = torch.as_tensor(present), {**cls.nothing, **fill}

        def placed(values: Tensor, nothing: float) -> Tensor:
            empty = values.new_full((*where.shape, *values.shape[1:]), nothing)
            empty[where] = values
            return empty

        each = {name: placed(values, fill.get(name, 0)) for name, values in records.tensors.items()}
        made: Any = cls
        return made(**each, present=where, own_length=own_length)

    @property
    def records(self) -> Any:
        """All places as records, one person after the other."""
        each = {name: tensor.flatten(0, 1) for name, tensor in self.tensors.items() if name != "present"}
        return self.record(**each)

    @property
    def empty(self) -> Tensor:
        """(B,) True for people without a record: with privacy they add nothing to a step."""
        return ~self.present.any(1)

    def mean(self, losses: Tensor) -> Tensor:
        """(B,) each person's mean of the losses of all places (B R,), over the person's own records."""
        own = torch.where(self.present, losses.view(self.present.shape), 0.0)
        return own.sum(1) / self.present.sum(1).clamp(min=1)

    def _widths(self) -> tuple[int, ...]:
        return (_most(self.present.sum(1)),)


@dataclass
class PersonBatch(OfPeople):
    """People's records of a click log; row i of every tensor belongs only to person i, whose records come first in it.

    >>> import torch
    >>> records = ClickBatch(torch.ones(3, 2), torch.zeros(3, 1, 1, dtype=torch.long), torch.tensor([1.0, 0.0, 1.0]))
    >>> batch = PersonBatch.padded(records, np.array([[True, True], [True, False]]))
    >>> len(batch), batch.clicked.tolist(), batch.categories[1, 1].tolist(), batch.select([1]).clicked.tolist()
    (2, [[1.0, 0.0], [1.0, 0.0]], [[-1]], [[1.0]])
    """

    record = ClickBatch
    nothing: ClassVar = {"categories": -1}

    numbers: Tensor  # (B, R, D) float32
    categories: Tensor  # (B, R, F, P) int64, -1 where there is no record
    clicked: Tensor  # (B, R) float32
    present: Tensor  # (B, R) bool: where there is a record
    own_length: bool = field(default=False, kw_only=True)  # each person's own records decide how many places there are


@dataclass
class PersonTextBatch(OfPeople):
    """People's texts; row i of every tensor belongs only to person i, whose records come first in it.

    `PersonTextBatch.padded` makes one from a `TextBatch`; `records` gives back the texts, and `mean` a loss per person.

    Attributes:
        ids: (B, R, T) int64: the tokens of each of R records.
        segments: (B, R, T) int64, as in `TextBatch`.
        mask: (B, R, T) int64, as in `TextBatch`.
        label: (B, R) int64: the class of each record.
        present: (B, R) bool: where there is a record.
        own_length: whether each person's own records decide how many places there are, and how long these are.

    >>> import torch
    >>> from dprec.data import PersonTextBatch, TextBatch
    >>> ones = torch.tensor([[1, 1], [1, 0], [1, 0]])
    >>> texts = TextBatch(ones, ones, ones, torch.tensor([1, 0, 1]))
    >>> batch = PersonTextBatch.padded(texts, torch.tensor([[True, True], [True, False]]), ids=9)
    >>> batch.ids.tolist(), batch.select([1]).ids.tolist()
    ([[[1, 1], [1, 0]], [[1, 0], [9, 9]]], [[[1]]])
    """

    record = TextBatch

    ids: Tensor  # (B, R, T) int64
    segments: Tensor  # (B, R, T) int64
    mask: Tensor  # (B, R, T) int64
    label: Tensor  # (B, R) int64
    present: Tensor  # (B, R) bool: where there is a record
    own_length: bool = field(default=False, kw_only=True)  # and how long these are

    def _widths(self) -> tuple[int, ...]:
        return (*super()._widths(), _most(self.mask.sum(-1)))


def _most(lengths: Tensor) -> int:
    return int(lengths.max()) if lengths.numel() else 0
