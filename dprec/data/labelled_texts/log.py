"""Labelled texts in memory, in tokens: read once, the training records first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dprec.data.draws.text_batch import PersonTextBatch, TextBatch
from dprec.data.labelled_texts.tokens import Tokenizer
from dprec.data.selection.packing import padded


@dataclass(frozen=True)
class Texts:
    """Records as they are read, before they are tokens."""

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray  # (n,) int64
    users: np.ndarray | None = None  # (n,) int64: equal for the records of one person
    names: list[str] | None = None  # of each record's user, as text

    def __len__(self) -> int:
        return len(self.texts)

    def at(self, places: Sequence[int]) -> Texts:
        return Texts(
            [self.texts[place] for place in places],
            None if self.pairs is None else [self.pairs[place] for place in places],
            self.labels[list(places)],
            None if self.users is None else self.users[list(places)],
            None if self.names is None else [self.names[place] for place in places],
        )


class TextLog:
    """Records in tokens, read by record number."""

    def __init__(self, records: Texts, tokenizer: Tokenizer, longest: int) -> None:
        made = tokenizer.read(records.texts, records.pairs, longest) if len(records) else []
        self.lengths = np.array([len(ids) for ids, _ in made], dtype=np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)])
        self.ids = np.array([one for ids, _ in made for one in ids], dtype=np.int32)
        self.segments = np.array([one for _, segments in made for one in segments], dtype=np.int8)
        self.labels, self.users, self.padding = records.labels, records.users, tokenizer.padding

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, records: np.ndarray) -> TextBatch:
        """Records by number, in this order, padded to the longest of them."""
        starts, lengths = self.starts[records], self.lengths[records]
        ids, segments = padded(self.ids, starts, lengths), padded(self.segments, starts, lengths)
        mask = torch.arange(ids.shape[1]) < torch.from_numpy(lengths)[:, None]
        label = torch.from_numpy(self.labels[records])
        return TextBatch(ids.masked_fill_(~mask, self.padding), segments, mask.long(), label)

    def people(self, records: np.ndarray, present: np.ndarray) -> PersonTextBatch:
        """The same by person: `records` one person after the other, in the places (B, R) of `present`."""
        places: Tensor = torch.from_numpy(present)
        return PersonTextBatch.padded(self.read(records), places, self.padding)
