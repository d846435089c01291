"""Click records in time order, in memory or on disk: counts, hashed categories, clicked or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from dprec.data.draws.batch import ClickBatch
from dprec.data.ids.hashed import bucket_ids

NUMBERS = 13  # counts of a record
FEATURES = 26  # categorical features of a record
WIDTH = NUMBERS + FEATURES


@dataclass(frozen=True)
class ClickBlock:
    """Consecutive records; a record's values lie side by side, so reading it touches one page.

    The 32-bit hashes do not depend on the vocabulary sizes: the same block serves all sizes.
    """

    values: np.ndarray  # (n, 39) int32: counts with missing ones 0, then the bits of the uint32 hashes
    clicked: np.ndarray  # (n,) uint8

    def __len__(self) -> int:
        return len(self.clicked)


class ClickLog:
    """Blocks in time order, read by record number; `days` says where each day starts and the last one ends.

    A log that does not mark its days is cut into days of equal size.
    """

    def __init__(self, blocks: Sequence[ClickBlock], vocabularies: Sequence[int], days: int | None = None) -> None:
        self.blocks = list(blocks)
        self.vocabularies = np.asarray(vocabularies, dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum([len(block) for block in self.blocks])])
        total = int(self._starts[-1])
        cuts = self._starts if days is None else np.arange(days + 1) * total // days
        self.days: list[int] = [int(cut) for cut in cuts]

    def __len__(self) -> int:
        return self.days[-1]

    def read(self, records: np.ndarray) -> ClickBatch:
        """Records by number, in this order; ascending order is fastest."""
        values = np.empty((len(records), WIDTH), dtype=np.int32)
        clicked = np.empty(len(records), dtype=np.float32)
        of = np.searchsorted(self._starts, records, side="right") - 1  # block of each record
        for number in np.unique(of):
            here = of == number
            rows = records[here] - self._starts[number]
            values[here] = self.blocks[number].values[rows]
            clicked[here] = self.blocks[number].clicked[rows]
        hashes = values[:, NUMBERS:].view(np.uint32)
        return ClickBatch(
            numbers=torch.from_numpy(values[:, :NUMBERS].astype(np.float32)),
            categories=torch.from_numpy(bucket_ids(hashes, self.vocabularies)[:, :, None]),
            clicked=torch.from_numpy(clicked),
        )

    @property
    def arrays(self) -> list[np.ndarray | None]:
        """All that was read."""
        return [array for block in self.blocks for array in (block.values, block.clicked)]

    def clicks(self, records: range) -> int:
        """How many of consecutive records were clicked. Private data."""
        total = 0
        for block, (first, last) in zip(self.blocks, pairwise(self._starts.tolist()), strict=True):
            start, stop = max(records.start - first, 0), min(records.stop, last) - first
            total += int(block.clicked[start : max(start, stop)].sum(dtype=np.int64))
        return total
