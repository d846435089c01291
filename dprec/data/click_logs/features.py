"""From the columns of a batch of rows to numbers: labels, counts and ids. Each value is read by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from dprec.data.click_logs.columns import Category, Number, role
from dprec.data.logs.ids import codes, normal
from dprec.data.logs.values import labels, normal_values, numbers, refuse
from dprec.errors import UserError

_CLICKED = {"1": 1, "true": 1, "0": 0, "false": 0}
_OF_TEXT = r'^[\s"\']+|[\s"\']+$'  # around an id of a list that is written as text


def clicks(batch: pl.DataFrame, part: Path, name: str, clicked: float | list[str] | None = None) -> np.ndarray:
    """(n,) uint8 of 0, 1, true and false.

    With `clicked`: 1 is a number from there on, or one of these values, and 0 is any other; none may be missing.
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
    """(n, slots) uint32: what `bucket_ids` makes an id of; 0 is a missing value, or no value in a bag."""
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
    """A hash in 1..2^32 - 1 of each value of 8 hexadecimal digits, one to one but for 0, which is a missing value."""
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
