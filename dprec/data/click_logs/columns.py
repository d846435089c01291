"""The columns of a click log, and how they are read: all settings come from the recipe, none from the data."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from dprec.data.formats import AUTO
from dprec.data.formats.format import Format, lines_of_list, refuse_unreadable
from dprec.data.formats.text import Unheaded
from dprec.data.formats.wanted import NamedColumns
from dprec.data.logs.ids import codes, normal, normal_texts
from dprec.data.logs.reader import by_name, labels, normal_values, numbers, refuse
from dprec.errors import UserError

FEWEST = 4  # rows that a scaled-down feature keeps, if it has them
LOG = "log"
RowsOrValues: TypeAlias = "int | str | Sequence[str]"  # to hash into, or public values: the name of a file, or a list
OF_COUNTS = 10.0  # models divide the logarithms of counts by this


@dataclass(frozen=True)
class Vocabulary:
    """A public list of values: the n-th has id n, a missing value 0, and all others share the last id."""

    values: tuple[str, ...]

    @classmethod
    def read(cls, given: str | Sequence[str], column: str) -> Vocabulary:
        """Read values from a file, one a line, or from a list of them."""
        if isinstance(given, str):
            where, lines = given, lines_of_list(Path(given), f"data.categories.{column}")
        else:
            where, lines = f"data.categories.{column}", list(map(str, given))
        values = [value for value in normal_texts(lines) if value is not None]
        if not values or len(set(values)) < len(values):
            problem = "names a value twice" if values else "names no value"
            raise UserError(f"{where} {problem}: give the values of '{column}' one a line, or in a list, each once")
        return cls(tuple(values))

    @property
    def size(self) -> int:
        return len(self.values) + 2

    @cached_property
    def ids(self) -> dict[str, int]:
        return {value: place for place, value in enumerate(self.values, start=1)}


@dataclass(frozen=True)
class Category:
    """A column of values, or of lists of values: hashed into rows of a table, or found in a public list."""

    column: str
    rows: int
    vocabulary: Vocabulary | None
    bag: int | None  # how many of a list's first ids count; None: one value in each record
    hexadecimal: bool = False  # values are hashes of 8 hexadecimal digits, as Criteo writes them

    @property
    def slots(self) -> int:
        return 1 if self.bag is None else self.bag

    @property
    def listed(self) -> str | None:
        """A hash of the public values."""
        values = None if self.vocabulary is None else "\n".join(self.vocabulary.values)
        return None if values is None else hashlib.sha256(values.encode()).hexdigest()


@dataclass(frozen=True)
class Number:
    """A column of numbers: taken as counts, whose logarithm models take, or placed between public bounds."""

    column: str
    bounds: tuple[float, ...] | None

    def as_counts(self, values: np.ndarray) -> np.ndarray:
        """Numbers in the form of counts; a missing one, NaN here, is 0.

        >>> Number("age", (18, 30, 60)).as_counts(np.array([10, 30, 45, np.nan])).round(2).tolist()
        [27.03, 784.77, 4159.26, 0.0]

        Models take the logarithm of a count and divide it: of these, they get 1/3, 2/3, 5/6 and 0.
        """
        missing = ~np.isfinite(values)
        if self.bounds is not None:
            places = np.arange(1, len(self.bounds) + 1) / len(self.bounds)
            values = np.expm1(OF_COUNTS * np.interp(values, self.bounds, places))
        return np.where(missing, 0.0, values)


class ClickColumns:
    """The columns of a log that a recipe names.

    Args:
        scale: multiplies the rows of categories.
        mark: the separator of columns of text without a header, if the file's name does not determine it.
        hexadecimal: whether categories are hashes of 8 hexadecimal digits, as Criteo writes them.
        label_column, user_column, time_column, categories, bags, numbers, format, where, clicked, header: as
            `dprec.data.Clicks` takes them.

    >>> columns = ClickColumns("clicked", "user_id", None, {"ad_id": 1000, "tags": 50}, {"tags": 3}, {"price": "log"})
    >>> columns.sizes, columns.slots, columns.bag
    ((1000, 50), 4, 3)
    """

    def __init__(
        self,
        label_column: str = "clicked",
        user_column: str | None = None,
        time_column: str | None = None,
        categories: Mapping[str, RowsOrValues] | None = None,
        bags: Mapping[str, int] | None = None,
        numbers: Mapping[str, Any] | None = None,
        scale: float = 1.0,
        format: str = AUTO,
        where: str | None = None,
        clicked: float | list[str] | None = None,
        header: Sequence[str] | None = None,
        mark: str | None = None,
        hexadecimal: bool = False,
    ) -> None:
        categories, bags, numbers = categories or {}, bags or {}, numbers or {}
        self.label, self.user, self.time = label_column, user_column, time_column
        self.format, self.where = format, where
        self.clicked, self.header, self.mark, self.hexadecimal = clicked, header, mark, hexadecimal
        if isinstance(clicked, list) and not clicked:
            raise UserError("data.clicked names no value: give those of the label that count as a click")
        if header is not None and len(set(header)) < len(header):
            raise UserError(f"data.header names a column twice: {', '.join(header)}")
        if header is not None and format != AUTO:
            raise UserError(f"data.header is for text without a header: leave data.format ({format}) out")
        if not categories and not numbers:
            raise UserError("data.categories and data.numbers are empty: name at least one column of the log")
        unknown = next((name for name in bags if name not in categories), None)
        if unknown is not None:
            raise UserError(f"data.bags names '{unknown}', which is not in data.categories: enter its rows there")
        self.categories = [
            replace(_category(name, value, bags.get(name), scale), hexadecimal=hexadecimal)
            for name, value in categories.items()
        ]
        self.numbers = [_number(name, value) for name, value in numbers.items()]
        if self.label in categories or self.label in numbers:
            raise UserError(f"'{self.label}' is what is predicted (data.label_column): take it out of the features")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The ids of each categorical column."""
        return tuple(category.rows for category in self.categories)

    @property
    def slots(self) -> int:
        """Places for ids in a record."""
        return sum(category.slots for category in self.categories)

    @property
    def bag(self) -> int:
        """The most ids of one column in a record."""
        return max((category.slots for category in self.categories), default=1)

    @property
    def width(self) -> int:
        """Numbers and places for ids in a record."""
        return len(self.numbers) + self.slots

    @property
    def reading(self) -> dict[str, Any]:
        """The settings that decide how a record is read, in plain values; ids are hashed into rows later."""
        columns = [[one.column, one.bag, one.listed] for one in self.categories]
        numbers = [[one.column, one.bounds] for one in self.numbers]
        given = {"label": self.label, "user": self.user, "time": self.time, "where": self.where, "format": self.format}
        form = {"clicked": self.clicked, "header": self.header, "mark": self.mark, "hexadecimal": self.hexadecimal}
        return {**given, **form, "categories": columns, "numbers": numbers}

    @property
    def facts(self) -> list[Any]:
        """The settings that must stay equal in a resumed run, in plain values; of vocabularies a hash."""
        listed = [one.listed for one in self.categories]
        columns = [[one.column, one.rows, one.bag] for one in self.categories]
        more = [] if self.clicked is None and self.header is None else [self.clicked, self.header]
        return [
            *[self.label, self.user, self.time, self.where, columns, listed, [vars(one) for one in self.numbers]],
            *more,
        ]

    def wanted(self) -> NamedColumns:
        """The columns of training."""
        roles: dict[str, str | None] = {"label": self.label, "user": self.user, "time": self.time}
        return NamedColumns(roles | self._features, self.where)

    def wanted_to_predict(self, beside: Sequence[str]) -> NamedColumns:
        """The features of all rows, and columns that are kept beside predictions."""
        return NamedColumns(self._features | {kept(name): name for name in beside})

    def format_of(self, part: Path) -> Format:
        """The format of a part: text without a header if `header` is given."""
        if self.header is None:
            return by_name(self.format)(part)
        refuse_unreadable(part)
        return Unheaded.of(self.header, part) if self.mark is None else Unheaded(self.header, self.mark, quote=None)

    @property
    def _features(self) -> dict[str, str | None]:
        roles: dict[str, str | None] = {role(number): number.column for number in self.numbers}
        return roles | {role(category): category.column for category in self.categories}


def kept(column: str) -> str:
    """The name of a column in a batch that is kept as it is."""
    return f"kept {column}"


def role(feature: Category | Number) -> str:
    """The name of a feature's column in a batch; one column may have several roles."""
    return f"{type(feature).__name__} {feature.column}"


def _category(column: str, value: RowsOrValues, bag: int | None, scale: float) -> Category:
    if bag is not None and not 1 <= bag <= 1000:
        raise UserError(f"data.bags.{column} is {bag}: give the most ids of a record that count, from 1 to 1,000")
    if not isinstance(value, int):
        vocabulary = Vocabulary.read(value, column)
        return Category(column, vocabulary.size, vocabulary, bag)
    if isinstance(value, bool) or not 2 <= value < 2**31:
        raise UserError(
            f"data.categories.{column} is {value}: give the number of rows that its values are hashed to, from 2 on, "
            "or a file or list of public values"
        )
    return Category(column, max(min(value, FEWEST), round(value * scale)), None, bag)


def _number(column: str, value: Any) -> Number:
    if value == LOG:
        return Number(column, None)
    bounds = value if isinstance(value, (list, tuple)) else ()
    finite = all(isinstance(one, (int, float)) and math.isfinite(one) for one in bounds)
    if len(bounds) < 2 or not finite or any(low >= high for low, high in pairwise(bounds)):
        raise UserError(
            f"data.numbers.{column} is {value}: give log, or two and more public bounds, ascending, such as its "
            "quantiles in public data"
        )
    return Number(column, tuple(map(float, bounds)))


_CLICKED = {"1": 1, "true": 1, "0": 0, "false": 0}
_OF_TEXT = r'^[\s"\']+|[\s"\']+$'  # around an id of a list that is written as text


def clicks(batch: pl.DataFrame, part: Path, name: str, clicked: float | list[str] | None = None) -> np.ndarray:
    """(n,) uint8 of 0, 1, true and false.

    With `clicked`, 1 is any number from it on, or one of these values, and 0 is any other; none may be missing.
    """
    column, rows = batch["label"], batch["row"]
    if column.dtype.is_nested():
        raise UserError(f"{part}: column '{name}' holds {column.dtype}: set data.label_column to one of 0 and 1")
    text = normal_values(column).str.to_lowercase()
    if isinstance(clicked, list):
        refuse(text.is_null(), column, rows, part, name, "want a value; leave such rows out with data.where")
        return text.is_in([value.strip().lower() for value in clicked]).to_numpy().astype(np.uint8)
    if clicked is not None:
        numeric = text.cast(pl.Float64, strict=False).fill_nan(None)
        wanted = "want a number, as data.clicked is one; mend it, or leave such rows out with data.where"
        refuse(numeric.is_null(), column, rows, part, name, wanted)
        return (numeric >= clicked).to_numpy().astype(np.uint8)
    wanted = "want 0 or 1, or true or false: set data.clicked to what is a click, or another data.label_column"
    mend = "want 0 or 1, or true or false; leave such rows out with data.where, or set another data.label_column"
    return labels(text, rows, part, name, _CLICKED, wanted, mend).astype(np.uint8)


def counts(batch: pl.DataFrame, part: Path, number: Number) -> np.ndarray:
    """(n,) float32 in the form of counts; missing values are 0."""
    found = numbers(batch[role(number)], batch["row"], part, number.column, "read the column as a category")
    return np.clip(number.as_counts(found), -np.float64(3e38), 3e38).astype(np.float32)


def hashes(column: pl.Series, part: Path, category: Category) -> np.ndarray:
    """(n, slots) uint32: hashes, which `bucket_ids` turns into ids; 0 is a missing value, or no value in a bag."""
    if category.bag is None:
        if column.dtype.is_nested():
            raise UserError(
                f"{part}: column '{category.column}' holds {column.dtype}: set data.bags.{category.column} to the "
                "most ids of a record that count"
            )
        return _codes(column, category)[:, None]
    if column.dtype == pl.String:
        column = _split(column)
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    if not isinstance(column.dtype, pl.List) or column.dtype.inner.is_nested():
        raise UserError(
            f"{part}: column '{category.column}' holds {column.dtype}, and data.bags says it holds lists: give lists, "
            "text such as a|b, or take it out of data.bags"
        )
    bag = column.list.drop_nulls().list.head(category.bag)
    lengths = bag.list.len().fill_null(0).to_numpy()
    ids = np.zeros((len(bag), category.bag), dtype=np.uint32)
    flat = bag.filter(pl.Series(lengths > 0)).explode()
    ids[np.arange(category.bag) < lengths[:, None]] = _codes(flat, category)
    return ids


def _codes(column: pl.Series, category: Category) -> np.ndarray:
    if category.vocabulary is not None:
        known, others = category.vocabulary.ids, len(category.vocabulary.values) + 1
        return codes(column, lambda values: [known.get(value, others) for value in values])
    return _hexadecimal(column) if category.hexadecimal else codes(column)


def _hexadecimal(column: pl.Series) -> np.ndarray:
    """A hash in 1..2^32 - 1 of each value of 8 hexadecimal digits, one to one; 0 is a missing value."""
    text = column.cast(pl.String).fill_null("")
    missing, numbers = text == "", text.str.to_integer(base=16, strict=False)
    wrong = ~missing & (numbers.is_null() | (text.str.len_bytes() != 8) | text.str.starts_with("+"))
    if wrong.any() or (numbers < 0).any():
        place = (wrong | (numbers < 0)).arg_max() or 0
        raise UserError(f"'{text[place][:40]}' is no value of Criteo's: want 8 hexadecimal digits")
    mixed = numbers.fill_null(0).to_numpy().astype(np.uint32)
    mixed = (mixed ^ (mixed >> 16)) * np.uint32(0x85EBCA6B)  # MurmurHash3's last step: neighbours spread over all rows
    mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
    return np.where(missing.to_numpy(), 0, np.maximum(mixed ^ (mixed >> 16), 1)).astype(np.uint32)


def _split(column: pl.Series) -> pl.Series:
    """Lists that are written as text: `["a", "b"]` or `a|b`."""
    inside = column.str.strip_chars().str.strip_chars_start("[").str.strip_chars_end("]")
    listed = column.str.contains(r"^\s*\[").fill_null(False)
    parts = pl.DataFrame({"text": inside, "listed": listed}).select(
        pl.when("listed").then(pl.col("text").str.split(",")).otherwise(pl.col("text").str.split("|"))
    )
    return parts.to_series().list.eval(normal(pl.element().str.replace_all(_OF_TEXT, "")))
