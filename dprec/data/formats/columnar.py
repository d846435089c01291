"""Parquet, Arrow's files, which pandas calls Feather, and data frames of polars and pandas."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from dprec.data.formats.format import Format, Start, Types
from dprec.errors import UserError

FRAME = Path("the data frame")  # its name in messages


class Parquet(Format):
    name = "parquet"
    endings: tuple[str, ...] = (".parquet", ".pq")
    magic = b"PAR1"

    def recognises(self, start: Start) -> bool:
        return super().recognises(start) or start.magic == self.magic

    def names(self, part: Path) -> list[str]:
        return list(self.types(part))

    def types(self, part: Path) -> Types:
        return pl.read_parquet_schema(part)

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return pl.scan_parquet(part)


class Feather(Parquet):
    name = "feather"
    endings = (".feather", ".arrow", ".ipc")
    magic = b"ARRO"

    def types(self, part: Path) -> Types:
        return pl.read_ipc_schema(part)

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return pl.scan_ipc(part)


class Frame(Format):
    """The rows of a data frame, each an event or a user's whole history, as in a file."""

    name = "frame"

    def __init__(self, frame: Any) -> None:
        self.frame = as_polars(frame)

    def names(self, part: Path) -> list[str]:
        return self.frame.collect_schema().names()

    def types(self, part: Path) -> Types:
        return self.frame.collect_schema()

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return self.frame


def as_polars(frame: Any) -> pl.LazyFrame:
    """Convert a data frame of polars or pandas, or an object with Arrow memory, such as a pyarrow table."""
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


def as_given(frame: pl.DataFrame, given: Any) -> Any:
    """Return the frame in the library of `given`."""
    if type(given).__module__.split(".")[0] != "pandas":
        return frame
    return type(given)(frame.to_dict(as_series=False))  # Python's values: polars' own conversion needs pyarrow


def _series(name: str, column: Any) -> pl.Series:
    """Convert a pandas column without pyarrow, which polars' own conversion needs."""
    if getattr(column.dtype, "kind", "O") in "iuf" and hasattr(column.dtype, "byteorder"):
        return pl.Series(name, column.to_numpy())
    values = [None if missing else value for value, missing in zip(column.tolist(), column.isna(), strict=True)]
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 and Decimal not in kinds:
        return pl.Series(name, values)
    if kinds & {list, tuple, dict}:
        raise UserError(f"{FRAME}: column '{name}' holds lists and single values: give one or the other")
    return pl.Series(name, [value if value is None else _text_of(value) for value in values], dtype=pl.String)


def _text_of(value: Any) -> str:
    """Return a value as polars writes it in a column of only its type."""
    if isinstance(value, Decimal):
        text = format(value, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    return str(value) if type(value) in (str, int) else str(pl.Series([value]).cast(pl.String)[0])
