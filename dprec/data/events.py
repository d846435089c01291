"""From the rows of a log to its events: ids numbered, times compared, users grouped."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl

from dprec.data.histories import Interactions
from dprec.errors import UserError


def events(frame: pl.DataFrame, path: Path) -> Interactions:
    """Return the events of a log's rows: columns user, item and, unless rows are in time order, time.

    >>> frame = pl.DataFrame({"user": ["b", "a", "b"], "item": ["x", "y", "z"], "time": [3, 1, 2]})
    >>> found = events(frame, Path("log.csv"))
    >>> found.user.tolist(), [found.item_ids[item] for item in found.item]
    ([0, 1, 1], ['y', 'z', 'x'])
    """
    if frame.is_empty():
        raise UserError(f"{path} is empty: an interaction log has at least one event")
    ids = frame.select(pl.col("user", "item").cast(pl.String))
    for role in ("user", "item"):
        _refuse(ids[role].is_null() | (ids[role] == ""), path, f"has no {role} id")
    user, _ = _numbered(ids["user"])
    item, item_ids = _numbered(ids["item"])
    if "time" in frame.columns:
        order = np.lexsort((_numeric_time(frame["time"], path), user))  # stable: ties keep the file's order
    else:
        order = np.argsort(user, kind="stable")
    return Interactions(user[order], item[order], item_ids.to_list())


def _refuse(wrong: pl.Series, path: Path, what: str) -> None:
    if wrong.any():
        row = int(wrong.arg_max() or 0) + 1
        raise UserError(f"{path}: data row {row} {what} ({wrong.sum()} such rows): mend or remove them")


def _numeric_time(time: pl.Series, path: Path) -> np.ndarray:
    _refuse(time.is_null(), path, "has no time")
    numbers = time
    if time.dtype == pl.String:
        text = time.str.strip_chars()
        numbers = whole = text.cast(pl.Int64, strict=False)
        if whole.has_nulls():
            numbers = text.cast(pl.Float64, strict=False)
            if not numbers.has_nulls():
                # As float64 such times fall together: one user's fraction would reorder another user's events.
                large = ~whole.is_between(-(2**53), 2**53).fill_null(True)
                _refuse(large, path, "has a time beyond 2^53, inexact beside times that are not 64-bit whole numbers")
        if numbers.is_null().all():
            # Only ISO dates: 02/01/2020 has two readings, and a wrong one would reorder histories silently.
            dates = pl.select(pl.when(text.str.contains(r"^\d{4}-\d\d-\d\d")).then(text)).to_series()
            with suppress(pl.exceptions.ComputeError):  # no date at all: the nulls are refused below
                numbers = dates.str.to_datetime(strict=False, time_unit="us")
    if numbers.dtype.is_temporal():
        numbers = numbers.to_physical()
    elif not numbers.dtype.is_numeric():
        raise UserError(f"{path}: the time column holds {numbers.dtype}: give numbers or ISO dates")
    wrong = numbers.is_null() | numbers.is_nan() if numbers.dtype.is_float() else numbers.is_null()
    _refuse(wrong, path, "has a time that is neither a number nor an ISO date")
    return numbers.to_numpy()


def _numbered(ids: pl.Series) -> tuple[np.ndarray, pl.Series]:
    """Every id as its place in the sorted list of distinct ids, and that list."""
    distinct = ids.unique().alias("id").to_frame()
    if distinct["id"].str.contains(r"^[0-9]{1,18}$").all():
        distinct = distinct.sort(pl.col("id").cast(pl.Int64), "id")
    else:
        distinct = distinct.sort("id")
    places = pl.int_range(len(distinct), dtype=pl.Int32, eager=True)
    numbers = ids.replace_strict(distinct["id"], places, return_dtype=pl.Int32)
    return numbers.to_numpy(), distinct["id"]
