"""From labelled texts to batches, whose texts are of similar length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch.utils.data import Dataset

from dprec.data.draws.text_batch import TextBatch
from dprec.data.labelled_texts.log import TextLog
from dprec.data.selection.packing import pack


class TrainingTexts(Dataset):
    """Consecutive records, numbered from 0, served a logical batch at a time."""

    def __init__(self, log: TextLog, records: range, tokens: int) -> None:
        self.log, self.records, self.tokens = log, records, tokens

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, record: int) -> list[TextBatch]:
        return self.__getitems__([record])

    def __getitems__(self, records: Sequence[int]) -> list[TextBatch]:
        """The micro-batches of one step: a partition of `records`; none for an empty draw."""
        index = self.records.start + np.asarray(records, dtype=np.int64)
        return [self.log.read(index[group]) for group in pack(self.log.lengths[index], self.tokens)]


class EvaluatedTexts(Dataset):
    """Consecutive records in batches of similar length."""

    def __init__(self, log: TextLog, records: range, tokens: int) -> None:
        self.log = log
        self.groups = [records.start + group for group in pack(log.lengths[records.start : records.stop], tokens)]

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, number: int) -> TextBatch:
        return self.log.read(self.groups[number])
