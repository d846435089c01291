"""Public features of items, by which a request filters them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from dprec.data.selection.catalogue import Catalogue
from dprec.errors import UserError
from dprec.models.items.features import ITEM, file_of_items


class ItemFeatures:
    """The columns of a CSV file with a column `item`; `|` separates several values of an item.

    The file may be `model.feature_file` or any other: the model need not read it.

    Args:
        file: the CSV file.
        catalogue: the items that the run knows; others in the file are left out.
    """

    def __init__(self, file: str, catalogue: Catalogue) -> None:
        table, lines = file_of_items(file, "features")
        split = pl.exclude(ITEM).fill_null("").str.split("|").list.eval(pl.element().str.strip_chars())
        self.values = table.select(split)  # the values of each line, in each column
        self.rows = np.array([lines.get(raw, -1) for raw in catalogue.ids], dtype=np.int64)  # (V,) items' lines or -1

    def numbers(self, only: Any) -> np.ndarray:
        """Return the numbers (n,) of the items with one of the given values in each column: {"genre": ["Comedy"]}."""
        if not isinstance(only, Mapping) or not set(only) <= set(self.values.columns):
            columns = ", ".join(self.values.columns)
            raise UserError(f"only must name columns of the items' features, with values: {columns}")
        holds = np.ones(len(self.rows), dtype=bool)
        for name, wanted in only.items():
            values = [str(value) for value in (wanted if isinstance(wanted, (list, tuple)) else [wanted])]
            fits = self.values[name].list.eval(pl.element().is_in(values)).list.any().to_numpy()
            holds &= np.append(fits, False)[self.rows]
        return np.flatnonzero(holds) + 1
