"""From the rows of a log to its events: ids numbered, times compared, users grouped."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import polars as pl

from dprec.data.histories import Interactions
from dprec.data.ids import numbered
from dprec.errors import UserError

_A = {"user": "a user", "item": "an item"}


def events(frame: pl.DataFrame, path: Path) -> Interactions:
    """Return the events of a log's rows: columns user, item and, unless rows are in time order, time.

    >>> frame = pl.DataFrame({"user": ["b", "a", "b"], "item": ["x", "y", "z"], "time": [3, 1, 2]})
    >>> found = events(frame, Path("log.csv"))
    >>> found.user.tolist(), [found.item_ids[item] for item in found.item]
    ([0, 1, 1], ['y', 'z', 'x'])
    """
    if frame.is_empty():
        raise UserError(f"{path} is empty: an interaction log has at least one event")
    user, _ = numbered(frame["user"], path, "user")
    item, item_ids = numbered(frame["item"], path, "item")
    kept = _with_ids(user, item, path)
    rows = np.flatnonzero(kept)
    users, items = user.filter(kept).to_numpy(), item.filter(kept).to_numpy()
    if "time" in frame.columns:
        time = _numeric_time(frame["time"].filter(kept), path, rows)
        order = np.lexsort((time, users))  # stable: ties keep the file's order
    else:
        order = np.argsort(users, kind="stable")
    return Interactions(users[order], items[order], item_ids.to_list())


def _with_ids(user: pl.Series, item: pl.Series, path: Path) -> pl.Series:
    """Which rows say who met what. The others are left out: `NULL` is not a person."""
    kept = user.is_not_null() & item.is_not_null()
    for role, missing in (("user", user.is_null()), ("item", item.is_null() & user.is_not_null())):
        if missing.all():
            raise UserError(f"{path}: no row has {_A[role]} id: is it another column? set data.{role}_column")
        if count := int(missing.sum()):
            said = ("row has", "counts") if count == 1 else ("rows have", "count")
            print(f"{path}: {count:,} {said[0]} no {role} id and {said[1]} for nothing", file=sys.stderr)
    if not kept.any():
        raise UserError(f"{path}: no row has both a user id and an item id")
    return kept


def _refuse(wrong: pl.Series, path: Path, what: str, rows: np.ndarray) -> None:
    if wrong.any():
        row = int(rows[wrong.arg_max() or 0]) + 1
        raise UserError(f"{path}: data row {row} {what} ({wrong.sum()} such rows): mend or remove them")


def _numeric_time(time: pl.Series, path: Path, rows: np.ndarray) -> np.ndarray:
    _refuse(time.is_null(), path, "has no time", rows)
    numbers = time
    if time.dtype == pl.String:
        text = time.str.strip_chars()
        numbers = whole = text.cast(pl.Int64, strict=False)
        if whole.has_nulls():
            numbers = text.cast(pl.Float64, strict=False)
            if not numbers.has_nulls():
                # As float64 such times fall together: one user's fraction would reorder another user's events.
                large = ~whole.is_between(-(2**53), 2**53).fill_null(True)
                inexact = "has a time beyond 2^53, inexact beside times that are not 64-bit whole numbers"
                _refuse(large, path, inexact, rows)
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
    _refuse(wrong, path, "has a time that is neither a number nor an ISO date", rows)
    return numbers.to_numpy()
