"""Single values, numbers and labels in the columns of a batch: each is read by itself, and a wrong one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl

from dprec.data.logs.ids import normal
from dprec.errors import UserError


def single(batch: pl.DataFrame, part: Path, role: str) -> pl.Series:
    """A column of single values."""
    column = batch[role]
    if column.dtype.is_nested():
        setting = f"{role}_column"
        raise UserError(f"{part}: the {setting} holds {column.dtype}: set data.{setting} to a column of single values")
    return column


def numbers(column: pl.Series, rows: pl.Series, part: Path, name: str, instead: str) -> np.ndarray:
    """(n,) float64, NaN where a value is missing; `instead` is how else the column can be read.

    >>> numbers(pl.Series(["1.5", " 2 ", "NULL", None]), pl.Series(range(4)), Path("log.csv"), "price", "").tolist()
    [1.5, 2.0, nan, nan]
    """
    wanted = f"want a number or nothing; mend it, or {instead}"
    if column.dtype.is_nested() or column.dtype.is_temporal():
        raise UserError(f"{part}: column '{name}' holds {column.dtype}: {wanted}")
    values = column.cast(pl.Float64, strict=False)
    odd = values.is_null() & column.is_not_null()
    if odd.any():  # such as a number with white space around it, or NULL
        text = normal_values(column.filter(odd))
        read = text.cast(pl.Float64, strict=False)
        refuse(read.is_null() & text.is_not_null(), column.filter(odd), rows.filter(odd), part, name, wanted)
        values = values.scatter(np.flatnonzero(odd.to_numpy()), read)
    return values.fill_null(np.nan).to_numpy()


def labels(
    column: pl.Series, rows: pl.Series, part: Path, name: str, classes: Mapping[str, int], wanted: str, mend: str
) -> np.ndarray:
    """(n,) int64: the number of each value's class. `wanted` says what to give for others, `mend` what for none."""
    read = column.replace_strict(classes, default=None, return_dtype=pl.Int64)
    refuse(read.is_null() & column.is_not_null(), column, rows, part, name, wanted)
    refuse(read.is_null(), column, rows, part, name, mend)
    return read.to_numpy()


def normal_values(column: pl.Series) -> pl.Series:
    """Values written as ids are."""
    return column.to_frame("it").select(normal(pl.col("it"))).to_series()


def refuse(wrong: pl.Series, column: pl.Series, rows: pl.Series, part: Path, name: str, wanted: str) -> None:
    """Refuse the first wrong value of a column; `rows` are the rows' numbers in the part, from 0."""
    if wrong.any():
        place = wrong.arg_max() or 0
        shown = "missing" if column[place] is None else f"'{str(column[place])[:40]}'"
        raise UserError(f"{part}: data row {rows[place] + 1}: '{name}' is {shown}: {wanted}")
