"""A data frame of polars or pandas as a table; also whatever hands over Arrow memory, such as a table of pyarrow."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from dprec.data.formats.condition import Condition
from dprec.data.formats.format import Wanted
from dprec.data.formats.named import table_of
from dprec.data.formats.table import Table
from dprec.errors import UserError

FRAME = Path("the data frame")  # its name in messages


def frame_table(frame: Any, wanted: Wanted) -> Table:
    """The rows of a frame, each an event or a user's whole history, as in a file."""
    lazy = as_polars(frame)
    types = lazy.collect_schema()
    columns = wanted.choose(FRAME, types.names())
    where = None
    if wanted.where is not None:
        where = Condition.read(wanted.where, FRAME, types.names(), lambda: types)
    needed = list(dict.fromkeys([*columns.values(), *(where.columns if where else ())]))
    return table_of(lazy.select(needed), FRAME, columns, where)


def as_polars(frame: Any) -> pl.LazyFrame:
    if isinstance(frame, pl.LazyFrame):
        return frame
    if isinstance(frame, pl.DataFrame):
        return frame.lazy()
    if type(frame).__module__.split(".")[0] == "pandas" and hasattr(frame, "columns"):
        names = [str(name) for name in frame.columns]
        if len(set(names)) < len(names):
            raise UserError(f"{FRAME} has two columns of one name: rename one")
        return pl.DataFrame([_series(name, frame.iloc[:, place]) for place, name in enumerate(names)]).lazy()
    if hasattr(frame, "__arrow_c_stream__"):
        return pl.DataFrame(frame).lazy()
    raise UserError(f"a log is a {type(frame).__name__}: give a data frame of polars or pandas")


def _series(name: str, column: Any) -> pl.Series:
    """A column of pandas without pyarrow, which polars' own conversion needs."""
    if getattr(column.dtype, "kind", "O") in "iuf" and hasattr(column.dtype, "byteorder"):
        return pl.Series(name, column.to_numpy())
    values = [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)]
    values = [_text_of(value) if isinstance(value, Decimal) else value for value in values]
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return pl.Series(name, values)
    text: list[str | None] = [None] * len(values)  # each as in a column of its kind alone, whatever others' values are
    for kind in kinds:
        places = [place for place, value in enumerate(values) if type(value) is kind]
        alike = pl.Series([values[place] for place in places])
        if alike.dtype.is_nested():
            raise UserError(f"{FRAME}: column '{name}' holds lists and single values: give one or the other")
        for place, value in zip(places, alike.cast(pl.String), strict=True):
            text[place] = value
    return pl.Series(name, text, dtype=pl.String)


def _text_of(number: Decimal) -> str:
    """A decimal by itself: polars would write all of a column with as many places as the longest."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
