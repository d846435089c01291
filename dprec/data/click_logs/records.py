"""From records of a log to batches: micro-batches of drawn records, and batches of consecutive ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch.utils.data import Dataset

from dprec.data.click_logs.log import ClickLog
from dprec.data.click_logs.named.log import NamedLog
from dprec.data.draws.batch import ClickBatch
from dprec.errors import UserError

_EVALUATED = 8_192  # records of a batch that is only evaluated


class TrainingRecords(Dataset):
    """Consecutive records of a log, numbered from 0, served a logical batch at a time."""

    def __init__(self, log: ClickLog | NamedLog, records: range, micro_batch: int) -> None:
        if micro_batch < 1:
            raise UserError(f"data.micro_batch is {micro_batch}: give a micro-batch at least 1 record")
        self.log = log
        self.records = records
        self.micro_batch = micro_batch

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, record: int) -> list[ClickBatch]:
        return self.__getitems__([record])

    def __getitems__(self, records: Sequence[int]) -> list[ClickBatch]:
        """The micro-batches of one step: a partition of `records`; none for an empty draw."""
        index = self.records.start + np.asarray(records, dtype=np.int64)
        pieces = range(0, len(index), self.micro_batch)
        return [self.log.read(index[start : start + self.micro_batch]) for start in pieces]


class EvaluatedRecords(Dataset):
    """Consecutive records of a log in their order, in batches."""

    def __init__(self, log: ClickLog | NamedLog, records: range) -> None:
        self.log = log
        self.records = records

    def __len__(self) -> int:
        return -(-len(self.records) // _EVALUATED)

    def __getitem__(self, number: int) -> ClickBatch:
        piece = self.records[number * _EVALUATED : (number + 1) * _EVALUATED]
        if not piece:
            raise IndexError(number)
        return self.log.read(np.arange(piece.start, piece.stop))
