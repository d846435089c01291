"""Micro-batches of labelled texts: one by one, or by person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dprec.data.draws.batch import OfPeople


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
