"""The inputs of a model: micro-batches of users or records for training, and batches for ranking."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Not frozen: Lightning's precision plugins write the tensors they convert back into the batch.


@dataclass
class SequenceBatch:
    """Users' histories for training; row u of every tensor belongs only to user u.

    Item ids start at 1; 0 is padding, on the right.

    >>> import torch
    >>> batch = SequenceBatch(torch.tensor([[3, 1, 0]]), torch.tensor([[1, 2, 0]]))
    >>> len(batch)
    1
    """

    history: Tensor  # (B, T) int64
    targets: Tensor  # (B, T) int64: the item that follows each position, 0 where there is none
    own_length: bool = field(default=False, kw_only=True)  # each row's own length decides how far it is padded

    def __len__(self) -> int:
        return self.history.shape[0]

    @property
    def empty(self) -> Tensor:
        """(B,) which users have no history: with privacy they add nothing to a step."""
        return (self.history == 0).all(1)

    def select(self, users: Sequence[int]) -> SequenceBatch:
        """Return the batch of only these users, in this order: as long as the longest, where others lengthened it."""
        rows = list(users)
        length = self.history.shape[1]
        if not self.own_length:
            length = max(1, int((self.history[rows] != 0).sum(1).max())) if rows else 1
        return SequenceBatch(self.history[rows, :length], self.targets[rows, :length], own_length=self.own_length)

    def to(self, device: torch.device | str, **options: Any) -> SequenceBatch:
        each = (tensor.to(device, **options) for tensor in (self.history, self.targets))
        return SequenceBatch(*each, own_length=self.own_length)


@dataclass
class ContextBatch(SequenceBatch):
    """The same, with what is known of each event of a history; nothing is known of a target."""

    context: Tensor  # (B, T, C) int64: the values of C columns, from 1; 0 where one is missing, and for the padding

    def select(self, users: Sequence[int]) -> ContextBatch:
        rows = list(users)
        chosen = super().select(rows)
        context = self.context[rows, : chosen.history.shape[1]]
        return ContextBatch(chosen.history, chosen.targets, context, own_length=self.own_length)

    def to(self, device: torch.device | str, **options: Any) -> ContextBatch:
        moved = super().to(device, **options)
        context = self.context.to(device, **options)
        return ContextBatch(moved.history, moved.targets, context, own_length=self.own_length)


@dataclass
class RankingBatch:
    """Users' histories, and for each the held-out items to rank: one, or several."""

    history: Tensor  # (B, T) int64: the most recent items, right-padded with 0
    target: Tensor  # (B,) int64; or (B, K): each user's distinct items, the missing ones 0
    seen: Tensor  # (B, S) int64: every item the user saw before the target, padded with 0, repeats allowed

    def __len__(self) -> int:
        return self.history.shape[0]

    def to(self, device: torch.device | str, **options: Any) -> RankingBatch:
        return RankingBatch(
            self.history.to(device, **options),
            self.target.to(device, **options),
            self.seen.to(device, **options),
        )


@dataclass
class RankingInContext(RankingBatch):
    """The same, with what is known of each event of a history."""

    context: Tensor  # (B, T, C) int64, as in `ContextBatch`

    def to(self, device: torch.device | str, **options: Any) -> RankingInContext:
        moved = super().to(device, **options)
        return RankingInContext(moved.history, moved.target, moved.seen, self.context.to(device, **options))


@dataclass
class ClickBatch:
    """Records of a click log; row i of every tensor belongs only to record i.

    >>> import torch
    >>> batch = ClickBatch(torch.tensor([[3.0], [0.0]]), torch.tensor([[[2]], [[0]]]), torch.tensor([1.0, 0.0]))
    >>> len(batch), batch.select([1]).clicked
    (2, tensor([0.]))
    """

    numbers: Tensor  # (B, D) float32: counts, 0 where missing; some logs have a few negative ones
    categories: Tensor  # (B, F, P) int64: the ids of each of F features, repeats allowed, -1 where a bag is shorter
    clicked: Tensor  # (B,) float32: 0 or 1

    def __len__(self) -> int:
        return self.clicked.shape[0]

    def select(self, records: Sequence[int]) -> ClickBatch:
        """Return the batch of only these records, in this order."""
        rows = list(records)
        return ClickBatch(self.numbers[rows], self.categories[rows], self.clicked[rows])

    def to(self, device: torch.device | str, **options: Any) -> ClickBatch:
        return ClickBatch(
            self.numbers.to(device, **options),
            self.categories.to(device, **options),
            self.clicked.to(device, **options),
        )


class OfPeople:
    """A batch of people's records, in places of which some are empty."""

    present: Tensor  # (B, R) bool: where there is a record

    @property
    def empty(self) -> Tensor:
        """(B,) which people have no record: with privacy they add nothing to a step."""
        return ~self.present.any(1)

    def mean(self, losses: Tensor) -> Tensor:
        """(B,) each person's mean of the losses of these places (B R,), over the person's records alone."""
        own = torch.where(self.present, losses.view(self.present.shape), 0.0)
        return own.sum(1) / self.present.sum(1).clamp(min=1)


@dataclass
class PersonBatch(OfPeople):
    """People's records of a click log; row i of every tensor belongs only to person i, whose records come first in it.

    >>> import torch
    >>> records = ClickBatch(torch.ones(3, 2), torch.zeros(3, 1, 1, dtype=torch.long), torch.tensor([1.0, 0.0, 1.0]))
    >>> batch = PersonBatch.padded(records, np.array([[True, True], [True, False]]))
    >>> len(batch), batch.clicked.tolist(), batch.categories[1, 1].tolist(), batch.select([1]).clicked.tolist()
    (2, [[1.0, 0.0], [1.0, 0.0]], [[-1]], [[1.0]])
    """

    numbers: Tensor  # (B, R, D) float32
    categories: Tensor  # (B, R, F, P) int64, -1 where there is no record
    clicked: Tensor  # (B, R) float32
    present: Tensor  # (B, R) bool: where there is a record
    own_length: bool = field(default=False, kw_only=True)  # each person's own records decide how many places there are

    @classmethod
    def padded(cls, records: ClickBatch, present: np.ndarray, own_length: bool = False) -> PersonBatch:
        """People's records, one person after the other, in the places where `present` (B, R) says so."""
        where = torch.from_numpy(present)

        def placed(values: Tensor, nothing: float) -> Tensor:
            return values.new_full((*where.shape, *values.shape[1:]), nothing).masked_scatter_(
                where.view(*where.shape, *[1] * (values.dim() - 1)), values
            )

        each = placed(records.numbers, 0), placed(records.categories, -1), placed(records.clicked, 0)
        return cls(*each, where, own_length=own_length)

    def __len__(self) -> int:
        return self.clicked.shape[0]

    @property
    def records(self) -> ClickBatch:
        """All places as records, one person after the other."""
        return ClickBatch(self.numbers.flatten(0, 1), self.categories.flatten(0, 1), self.clicked.flatten(0, 1))

    def select(self, people: Sequence[int]) -> PersonBatch:
        """Return the batch of only these people, in this order: no wider than they, where others widened it."""
        rows = list(people)
        width = self.present.shape[1]
        if not self.own_length:
            width = max(1, int(self.present[rows].sum(1).max())) if rows else 1
        each = (tensor[rows, :width] for tensor in (self.numbers, self.categories, self.clicked, self.present))
        return PersonBatch(*each, own_length=self.own_length)

    def to(self, device: torch.device | str, **options: Any) -> PersonBatch:
        each = (tensor.to(device, **options) for tensor in (self.numbers, self.categories, self.clicked, self.present))
        return PersonBatch(*each, own_length=self.own_length)


@dataclass
class TextBatch:
    """Texts, or pairs of texts, in tokens; row i of every tensor belongs only to record i. Padding is on the right.

    >>> batch = TextBatch(*(torch.tensor([[1, 1], [1, 0]]),) * 3, torch.tensor([0, 1]))
    >>> len(batch), batch.select([1]).ids.tolist(), batch.select([1]).label.tolist()
    (2, [[1]], [1])
    """

    ids: Tensor  # (B, T) int64
    segments: Tensor  # (B, T) int64: 0, and 1 for the second text of a pair
    mask: Tensor  # (B, T) int64: 1 for tokens, 0 for padding
    label: Tensor  # (B,) int64
    own_length: bool = field(default=False, kw_only=True)  # each text's own length decides how far it is padded

    def __len__(self) -> int:
        return self.label.shape[0]

    def select(self, records: Sequence[int]) -> TextBatch:
        """Return the batch of only these records, in this order: as wide as the longest, where others widened it."""
        rows = list(records)
        width = self.mask.shape[1] if self.own_length else _widest(self.mask[rows])
        ids, segments, mask = (tensor[rows, :width] for tensor in (self.ids, self.segments, self.mask))
        return TextBatch(ids, segments, mask, self.label[rows], own_length=self.own_length)

    def to(self, device: torch.device | str, **options: Any) -> TextBatch:
        moved = (each.to(device, **options) for each in (self.ids, self.segments, self.mask, self.label))
        return TextBatch(*moved, own_length=self.own_length)


@dataclass
class PersonTextBatch(OfPeople):
    """People's texts; row i of every tensor belongs only to person i, whose records come first in it."""

    ids: Tensor  # (B, R, T) int64
    segments: Tensor  # (B, R, T) int64
    mask: Tensor  # (B, R, T) int64
    label: Tensor  # (B, R) int64
    present: Tensor  # (B, R) bool: where there is a record
    own_length: bool = field(
        default=False, kw_only=True
    )  # each person's own records decide how many and how long places are

    @classmethod
    def padded(cls, texts: TextBatch, present: Tensor, padding: int) -> PersonTextBatch:
        """People's texts, one person after the other, in the places where `present` (B, R) says so.

        >>> ones = torch.tensor([[1, 1], [1, 0], [1, 0]])
        >>> texts = TextBatch(ones, ones, ones, torch.tensor([1, 0, 1]))
        >>> batch = PersonTextBatch.padded(texts, torch.tensor([[True, True], [True, False]]), padding=9)
        >>> batch.ids.tolist(), batch.select([1]).ids.tolist()
        ([[[1, 1], [1, 0]], [[1, 0], [9, 9]]], [[[1]]])
        """

        def placed(values: Tensor, nothing: int) -> Tensor:
            empty = values.new_full((*present.shape, *values.shape[1:]), nothing)
            empty[present] = values
            return empty

        return cls(
            placed(texts.ids, padding),
            placed(texts.segments, 0),
            placed(texts.mask, 0),
            placed(texts.label, 0),
            present,
            own_length=texts.own_length,
        )

    def __len__(self) -> int:
        return self.label.shape[0]

    @property
    def texts(self) -> TextBatch:
        """All places as records, one person after the other.

        Where there is no record, the first place is not masked: attention over nothing is not a number.
        """
        mask = self.mask.clone()
        mask[:, :, 0] = 1
        return TextBatch(self.ids.flatten(0, 1), self.segments.flatten(0, 1), mask.flatten(0, 1), self.label.flatten())

    def select(self, people: Sequence[int]) -> PersonTextBatch:
        """Return the batch of only these people, in this order: no wider than they, where others widened it."""
        rows = list(people)
        most, width = self.present.shape[1], self.mask.shape[2]
        if not self.own_length:
            most, width = max(1, int(self.present[rows].sum(1).max())) if rows else 1, _widest(self.mask[rows])
        ids, segments, mask = (each[rows, :most, :width] for each in (self.ids, self.segments, self.mask))
        label, present = self.label[rows, :most], self.present[rows, :most]
        return PersonTextBatch(ids, segments, mask, label, present, own_length=self.own_length)

    def to(self, device: torch.device | str, **options: Any) -> PersonTextBatch:
        parts = (self.ids, self.segments, self.mask, self.label, self.present)
        return PersonTextBatch(*(each.to(device, **options) for each in parts), own_length=self.own_length)


def _widest(mask: Tensor) -> int:
    return max(1, int(mask.sum(-1).max())) if len(mask) else 1
