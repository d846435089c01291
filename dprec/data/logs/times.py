"""The times of events as numbers in the same order, while a log is read."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from dprec.errors import UserError

Kind = Literal["number", "date"]
# Numbers of seconds, milliseconds and so on since 1970, for 1976 to 2286.
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
_OF_DATES = 10**6  # dates become microseconds
LACKS_TIME = "has no time"
NO_TIME = "has a time that is neither a number nor an ISO date"
_FEW = 20  # a twentieth of the times may fit no unit, such as 1 for an unknown time
_EARLY, _LATE = 2 * 10**8, 10**10
_FORMS = {
    "zoned": ("%Y-%m-%d %H:%M:%S%.f %#z", "%Y-%m-%d %H:%M %#z"),
    "local": ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d"),
}


class Times:
    """One log's times: numbers or ISO dates, and never both, since they cannot be compared.

    Each becomes a float64 by itself, so no row decides how others are ordered. Whole numbers beyond 2^53 are rounded:
    today's times in nanoseconds, to 256 ns. Events that are then equal keep the log's order.

    >>> times = Times()
    >>> times.read(pl.Series(["2020-01-02", "2020-01-01 10:00"]), Path("log.csv"), np.arange(2)).tolist()
    [1577923200000000.0, 1577872800000000.0]
    """

    def __init__(self) -> None:
        self.kind: Kind | None = None
        self.least: float | None = None
        self.most: float | None = None
        self._units = dict.fromkeys(_UNITS, 0)
        self._other = 0
        self._example: dict[str, float] = {}
        self._zoned: bool | None = None

    def read(self, time: pl.Series, path: Path, rows: np.ndarray) -> np.ndarray:
        """Return a batch's times as float64; `rows` are the row numbers in the file, from 0."""
        if time.dtype == pl.String:
            numbers = time.cast(pl.Float64, strict=False)
            time = _stripped(time) if numbers.has_nulls() else numbers
        _refuse(time.is_null(), path, LACKS_TIME, rows)
        if not len(time):
            return np.empty(0)
        if time.dtype == pl.String:
            numbers = self._of_text(time, path, rows)
        elif time.dtype in (pl.Date, pl.Datetime):
            self._be("date", path, rows)
            numbers = _instants_of(time)
        elif time.dtype.is_numeric():
            self._be("number", path, rows)
            numbers = time
        else:
            raise UserError(f"{path}: the time column holds {time.dtype}: give numbers or ISO dates")
        values = numbers.cast(pl.Float64).to_numpy()
        _refuse(pl.Series(np.isnan(values)), path, NO_TIME, rows)
        if self.kind == "number":
            self._look_at_units(values)
        least, most = values.min(), values.max()
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        return values

    def _of_text(self, text: pl.Series, path: Path, rows: np.ndarray) -> pl.Series:
        numbers = text.cast(pl.Float64, strict=False)
        if self.kind == "number" or numbers.is_not_null().any():
            wrong = numbers.is_null() | numbers.is_nan()
            dates = wrong.any() and self._dates(text.filter(wrong), path).is_not_null().any()
            _refuse(wrong, path, "has no number where other rows have one" if dates else NO_TIME, rows, text)
            self._be("number", path, rows)
            return numbers
        instants = self._dates(text, path)
        _refuse(instants.is_null(), path, NO_TIME, rows, text)
        self._be("date", path, rows)
        return instants

    def _be(self, kind: Kind, path: Path, rows: np.ndarray) -> None:
        if self.kind not in (None, kind):
            raise UserError(
                f"{path}: data row {rows[0] + 1} has a {kind} as its time, but rows before it have a {self.kind}: "
                "give one kind of times"
            )
        self.kind = kind

    def _dates(self, text: pl.Series, path: Path) -> pl.Series:
        """Microseconds since 1970. Only ISO dates: 02/01/2020 has two meanings, and a wrong one reorders histories."""
        plain = text.str.replace(r"^(\d{4}-\d\d-\d\d)[Tt]", "$1 ").str.replace(r"\s*(UTC|GMT|Z|z)$", "+00:00")
        read = plain.to_frame("text").select(
            pl.coalesce(pl.col("text").str.to_datetime(form, strict=False, time_unit="us") for form in forms)
            .to_physical()
            .alias(name)
            for name, forms in _FORMS.items()
        )
        zoned, local = (read[name].is_not_null().any() for name in _FORMS)
        if (zoned and local) or (self._zoned is not None and (zoned or local) and zoned != self._zoned):
            raise UserError(f"{path} has times with a zone and times without: give all of them a zone, or none")
        self._zoned = zoned if zoned or local else self._zoned
        return read["zoned"].fill_null(read["local"])

    def _look_at_units(self, values: np.ndarray) -> None:
        left = len(values) - int((values == 0).sum())
        for unit, factor in _UNITS.items():
            here = (values >= _EARLY * factor) & (values < _LATE * factor)
            if count := int(here.sum()):
                self._units[unit] += count
                self._example.setdefault(unit, values[here.argmax()])
                left -= count
        self._other += left

    def finish(self, path: Path) -> None:
        """After the last row, refuse values that cannot be times."""
        mixed = [unit for unit, count in self._units.items() if count]
        # A counter that has values in the ranges of two units also has values between them.
        if len(mixed) > 1 and self._other * _FEW <= sum(self._units.values()):
            one, other = ((self._example[unit], self._units[unit], unit) for unit in mixed[:2])
            raise UserError(
                f"{path} has times in {one[2]} ({one[0]:.15g}, {one[1]:,} rows) and in {other[2]} ({other[0]:.15g}, "
                f"{other[1]:,} rows): give all of them in one unit"
            )

    def refuse_equal(self, path: Path) -> None:
        """Refuse times that put no event before another."""
        if self.least is not None and self.least == self.most:
            raise UserError(
                f"{path}: all times are equal ({self._said(self.least)}), so they give no order: set data.time_column "
                "to another column, or to rows if these are in order"
            )

    @property
    def unit(self) -> int | None:
        """How many units of the times are a second; None if the unit is unknown."""
        if self.kind == "date":
            return _OF_DATES
        known = [unit for unit, count in self._units.items() if count]
        return _UNITS[known[0]] if len(known) == 1 and not self._other else None

    def ages(self, values: np.ndarray) -> np.ndarray:
        """Return whole seconds from events to the log's last, uint32, for the values that `read` returned.

        More than 136 years count as 136 years.
        """
        if self.unit is None or self.most is None:
            raise ValueError("these times have no unit")
        if self.unit == 1:  # ten times as fast as a division
            last, own = np.floor(self.most), np.floor(values)
        else:
            last, own = self.most // self.unit, np.floor_divide(values, self.unit)
        return np.minimum(last - own, 2**32 - 1).astype(np.uint32)

    @property
    def said(self) -> str:
        """The span of all times in words, without the time of day if days are enough."""
        if self.least is None or self.most is None:
            return "no times"
        return f"{self._said(self.least)} to {self._said(self.most)}"

    def _said(self, value: float) -> str:
        if self.unit is None:
            return f"{value:.15g}"
        moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=int(value) // self.unit)
        return moment.strftime("%Y-%m-%d %H:%M").removesuffix(" 00:00")


def _stripped(text: pl.Series) -> pl.Series:
    """Text without white space around it; null if nothing is left."""
    text = text.str.strip_chars()
    return text.zip_with(text != "", pl.Series([None], dtype=pl.String))


def _instants_of(time: pl.Series) -> pl.Series:
    if isinstance(time.dtype, pl.Datetime) and time.dtype.time_zone is not None:
        time = time.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return time.cast(pl.Datetime("us")).to_physical()


def _refuse(wrong: pl.Series, path: Path, what: str, rows: np.ndarray, text: pl.Series | None = None) -> None:
    """Refuse a batch with wrong rows; the message shows a few different texts of theirs."""
    if wrong.any():
        row, wrongs = int(rows[wrong.arg_max() or 0]) + 1, wrong.sum()
        count = f"{wrongs} such row{'s' * (wrongs != 1)}"
        instead = "mend or remove them, or leave them out with data.where"
        if text is not None:
            shown = ", ".join(f"'{one[:25]}'" for one in text.filter(wrong).unique(maintain_order=True)[:3])
            count += f": {shown}"
            instead += f', such as "t NOT IN ({shown})" for a column t'
        if what == LACKS_TIME:
            instead += """, such as 't IS NOT NULL' for a column t, '"my time" IS NOT NULL' for one of two words"""
        if wrong.all() and len(wrong) > 1 and what == NO_TIME:
            instead = "write it as 2024-06-15 01:35, or if it is no time, name that in data.time_column"
        raise UserError(f"{path}: data row {row} {what} ({count}): {instead}")
