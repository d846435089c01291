"""An event's context beside its item, such as its device, hour or price: columns that a recipe names."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dprec.data.logs.ids import codes
from dprec.data.logs.reader import numbers
from dprec.errors import UserError

ROLE = "context "  # before the name of a column, where roles of columns are named
MOST = 2**31 - 1  # an event's context is one int32


@dataclass(frozen=True)
class ContextColumns:
    """The columns, and how many rows each one's values have; all settings come from the recipe, none from the data.

    A column with a number of rows is hashed to them. One with bounds holds numbers: it has a row below the first bound,
    and one from each bound on. The rows are 1, 2, ...; a missing value is 0.

    >>> columns = ContextColumns.of({"device": 5, "price": [10, 50]})
    >>> columns.rows
    {'device': 5, 'price': 3}
    >>> batch = pl.DataFrame({"row": [0, 1], "context device": ["tv", None], "context price": ["10", "70.5"]})
    >>> columns.values(columns.read(batch, Path("log.csv")))[:, 1].tolist()
    [2, 3]
    """

    columns: Mapping[str, int | tuple[float, ...]]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ContextColumns:
        """From data.context of a recipe."""
        if not isinstance(given, Mapping):
            raise UserError(f"data.context is {given!r}: give names of columns, each with its rows or bounds")
        found = cls({name: _rows(name, value) for name, value in given.items()})
        if not given:
            raise UserError("data.context names no column: name one, with its rows or bounds, or leave it out")
        if found.combinations > MOST:
            raise UserError(
                f"data.context has {found.combinations:,} combinations of rows, and an event has room for 2^31: "
                "give its columns fewer rows"
            )
        return found

    @property
    def plain(self) -> dict[str, Any]:
        """The columns in plain values."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self.columns.items()}

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(self.plain).encode()).hexdigest()[:16]

    @property
    def rows(self) -> dict[str, int]:
        return {name: len(value) + 1 if isinstance(value, tuple) else value for name, value in self.columns.items()}

    @property
    def examples(self) -> dict[str, str]:
        """A value of each column, as JSON writes it, for messages."""
        return {
            name: f"{bounds[0]:g}" if isinstance(bounds, tuple) else '"value"' for name, bounds in self.columns.items()
        }

    @property
    def roles(self) -> dict[str, str]:
        return {f"{ROLE}{name}": name for name in self.columns}

    @property
    def combinations(self) -> int:
        return math.prod(rows + 1 for rows in self.rows.values())

    def read(self, batch: pl.DataFrame, part: Path) -> np.ndarray:
        """(n,) int64: each row's values encoded as one number; columns are named by their roles."""
        code = np.zeros(len(batch), dtype=np.int64)
        for name, kind in self.columns.items():
            column = batch[f"{ROLE}{name}"]
            if column.dtype.is_nested():
                raise UserError(f"{part}: column '{name}' of data.context holds {column.dtype}: give single values")
            if isinstance(kind, tuple):
                number = numbers(column, batch["row"], part, name, "give the column rows in place of bounds")
                value = np.where(np.isnan(number), 0, 1 + np.searchsorted(kind, number, side="right"))
            else:
                hashed = codes(column).astype(np.int64)
                value = np.where(hashed == 0, 0, 1 + hashed % kind)
            code = code * (self.rows[name] + 1) + value
        return code

    def values(self, code: np.ndarray) -> np.ndarray:
        """Decode numbers into values (..., columns) int64: 0 for a missing one, else 1 to the column's rows."""
        found = np.empty((*code.shape, len(self.columns)), dtype=np.int64)
        left = code.astype(np.int64)
        for place, rows in reversed(list(enumerate(self.rows.values()))):
            left, found[..., place] = np.divmod(left, rows + 1)
        return found


@dataclass(frozen=True)
class EventWeights:
    """How much a model's mistake about an event counts, by a column of its context, such as a rating.

    >>> columns = ContextColumns.of({"device": 5, "rating": [3, 5]})
    >>> weights = EventWeights.of({"rating": [0, 0.5, 1]}, columns)
    >>> weights(np.array([[[2, 3], [2, 2], [1, 0]]]))
    array([[1. , 0.5, 1. ]], dtype=float32)
    """

    column: int
    values: tuple[float, ...]  # of a missing value, which is 1, and of each row

    @classmethod
    def of(cls, given: Mapping[str, Sequence[float]], columns: ContextColumns) -> EventWeights:
        """From data.event_weights of a recipe."""
        name, weights = next(iter(given.items())) if len(given) == 1 else ("", ())
        rows = columns.rows.get(name)
        if rows is None:
            raise UserError(f"data.event_weights is {given}: name one column of data.context")
        if len(weights) != rows or not all(math.isfinite(weight) and weight >= 0 for weight in weights):
            raise UserError(f"data.event_weights.{name} is {weights}: give {rows} numbers from 0, one for each row")
        return cls([*columns.rows].index(name), (1.0, *map(float, weights)))

    def __call__(self, context: np.ndarray) -> np.ndarray:
        """Return the weights (B, T) of events with these values (B, T, C)."""
        return np.array(self.values, dtype=np.float32)[context[..., self.column]]


def _rows(name: str, given: Any) -> int | tuple[float, ...]:
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given < MOST:
        return given
    if isinstance(given, Sequence) and not isinstance(given, str) and given:
        bounds = [value for value in given if isinstance(value, (int, float)) and math.isfinite(value)]
        if len(bounds) == len(given) and all(low < high for low, high in pairwise(bounds)):
            return tuple(float(value) for value in bounds)
    raise UserError(
        f"data.context.{name} is {given!r}: give the number of rows that its values are hashed to, "
        "or for numbers ascending bounds, such as [10, 50]"
    )
