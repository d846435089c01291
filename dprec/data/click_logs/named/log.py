"""A click log with named columns: its records in time order, in memory or mapped from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dprec.data.arrays.mapped import forget
from dprec.data.click_logs.named.columns import ClickColumns
from dprec.data.draws.batch import ClickBatch, PersonBatch
from dprec.data.ids.hashed import bucket_ids
from dprec.errors import UserError


@dataclass(frozen=True)
class Records:
    """What is read of a log, in time order; a record's values lie side by side, so reading it touches one page.

    The 32-bit hashes do not depend on the sizes of tables: the same records serve all sizes.
    """

    values: np.ndarray  # (n, numbers + slots) int32: the bits of float32 numbers, then those of uint32 hashes
    clicked: np.ndarray  # (n,) uint8
    users: np.ndarray | None = None  # (n,) int64: equal for the records of one person
    time: np.ndarray | None = None  # (n,) int64, ascending
    facts: Mapping[str, Any] = field(default_factory=dict)  # what was read and left out. Private data
    said: Sequence[str] = ()  # while it was read


def side_by_side(numbers: np.ndarray, hashed: np.ndarray) -> np.ndarray:
    """The values of records from numbers (n, D) float32 and hashes (n, slots) uint32."""
    return np.concatenate([numbers.view(np.int32), hashed.view(np.int32)], axis=1)


class NamedLog:
    """Records in time order, read by record number; what `ClickLog` is for Criteo's form.

    It is cut into days of about equal size. Records of the same time are of the same day.
    """

    def __init__(self, columns: ClickColumns, records: Records, days: int) -> None:
        count = len(records.clicked)
        if count < days:
            raise UserError(f"the log has {count} records: give at least one for each of {days} days")
        cuts = np.arange(days + 1) * count // days
        if records.time is not None:
            cuts[1:-1] = np.searchsorted(records.time, records.time[cuts[1:-1]])
        self.days: list[int] = [int(cut) for cut in cuts]
        self.users, self.facts = records.users, records.facts
        self._values, self._clicked, self._numbers = records.values, records.clicked, len(columns.numbers)
        widths = np.array([one.slots for one in columns.categories], dtype=np.int64)
        self._sizes = np.repeat(np.array(columns.sizes, dtype=np.int64), widths)
        self._bags = np.repeat(np.array([one.bag is not None for one in columns.categories], dtype=bool), widths)
        self._places = np.full((len(widths), columns.bag), columns.slots)  # (F, P) slot of each id; the last is empty
        for feature, (first, width) in enumerate(zip(np.cumsum([0, *widths]), widths, strict=False)):
            self._places[feature, :width] = np.arange(first, first + width)

    def __len__(self) -> int:
        return self.days[-1]

    def read(self, records: np.ndarray) -> ClickBatch:
        """Records by number, in this order; what is mapped takes no memory after that."""
        numbers, hashed = self._apart(self._values[records])
        clicked = self._clicked[records].astype(np.float32)
        forget(self._values, self._clicked)
        ids = bucket_ids(hashed, self._sizes)
        ids[(hashed == 0) & self._bags] = -1
        padded = np.concatenate([ids, np.full((len(ids), 1), -1)], axis=1)
        return ClickBatch(
            numbers=torch.from_numpy(np.ascontiguousarray(numbers)),
            categories=torch.from_numpy(padded[:, self._places]),
            clicked=torch.from_numpy(clicked),
        )

    def people(self, records: np.ndarray, present: np.ndarray) -> PersonBatch:
        """The same by person: `records` one person after the other, in the places (B, R) of `present`."""
        return PersonBatch.padded(self.read(records), present)

    @property
    def arrays(self) -> list[np.ndarray | None]:
        """All that was read."""
        return [*self._apart(self._values), self._clicked, self.users]

    def clicks(self, records: range) -> int:
        """How many of consecutive records were clicked. Private data."""
        return int(self._clicked[records.start : records.stop].sum(dtype=np.int64))

    def _apart(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values[:, : self._numbers].view(np.float32), values[:, self._numbers :].view(np.uint32)
