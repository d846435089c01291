"""The base of formats whose columns have names."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from dprec.data.formats.columns import setting_of
from dprec.data.formats.condition import Condition
from dprec.data.formats.format import Format, Wanted, first_line
from dprec.data.formats.table import THE_ROWS, Table, not_utf8, one_line
from dprec.errors import UserError

Types = Mapping[str, pl.DataType]
_NUMBER = "\0row"  # of a row in its part: a log may have a column `row`


class NamedFormat(Format):
    """Text is read as text: ids keep their zeros, and `dprec.data.logs.times` parses all times."""

    @abstractmethod
    def names(self, path: Path, part: Path) -> list[str]:
        """The names of the columns."""

    @abstractmethod
    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        """The rows, lazily, with at least the wanted columns."""

    def types(self, path: Path) -> Types:
        """The types of columns that the file states; they are never guessed from rows, which are people's."""
        return {}

    def table(self, path: Path, part: Path, wanted: Wanted) -> Table:
        with one_line(part):
            names = self.names(path, part)
        columns = wanted.choose(part, names)
        told = {name: value for name, value in wanted.partition.items() if name not in names}
        where = None
        if wanted.where is not None:
            where = Condition.read(wanted.where, part, [*names, *told], lambda: {**_types(told), **self.types(path)})
        needed = list(dict.fromkeys([*columns.values(), *(where.columns if where else ())]))
        if (twice := next((name for name in needed if names.count(name) > 1), None)) is not None:
            raise UserError(f"{part} has two columns '{twice}': rename one")
        constants = [pl.lit(told[name]).alias(name) for name in needed if name in told]
        with one_line(part):
            rows = self.scan(path, [name for name in needed if name not in told]).with_columns(constants)
            return table_of(rows.select(needed), part, columns, where, wanted.lists_are_events)


def _types(partition: Mapping[str, str | None]) -> Types:
    """What values from folders are, in a condition."""
    number = re.compile(r"-?\d+(\.\d+)?")
    known = {name: value for name, value in partition.items() if value is not None}
    return {name: pl.Int64() if number.fullmatch(value) else pl.String() for name, value in known.items()}


def first_text(path: Path, part: Path, least: str) -> str:
    """The first line that is not blank, in UTF-8; `least` is what to give where there is none."""
    line = first_line(path)
    if not line:
        raise UserError(f"{part} is empty: give {least}")
    if "\ufffd" in line:
        raise not_utf8(part)
    return line


def table_of(
    frame: pl.LazyFrame,
    part: Path,
    columns: Mapping[str, str],
    where: Condition | None,
    lists_are_events: bool = True,
) -> Table:
    """A table from a frame and the columns of its roles."""
    lists = _lists(frame.collect_schema(), columns, part) if lists_are_events else []

    def events(batch: pl.DataFrame) -> pl.DataFrame:
        chosen = batch.select(
            pl.col(_NUMBER).alias("row"), *(pl.col(name).alias(role) for role, name in columns.items())
        )
        return chosen.explode(lists) if lists else chosen

    time = f"column '{columns['time']}'" if "time" in columns else THE_ROWS
    return Table(part, frame, events, time, where, _NUMBER)


def _lists(types: Types, columns: Mapping[str, str], part: Path) -> list[str]:
    """The roles of columns that hold a user's whole history in one row."""
    lists = [role for role, name in columns.items() if isinstance(types[name], pl.List)]
    for role, name in columns.items():
        held = types[name]
        inner = held.inner if isinstance(held, pl.List) else held
        if inner.is_nested() or (role == "user" and role in lists) or inner == pl.Time:
            raise UserError(
                f"{part}: column '{name}' holds {types[name]}, which cannot be the {role}: set {setting_of(role)}, "
                "or write one event a row"
            )
    if lists and "item" not in lists:
        odd = columns[lists[0]]
        raise UserError(f"{part}: '{odd}' holds lists and '{columns['item']}' does not: give both as lists")
    return lists
