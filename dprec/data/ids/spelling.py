"""When two spellings are one id: a person whose id is written in two ways must not become two protected users.

The ids of all readers, catalogues and histories of `recommend` go through here. The rules look at one id at a time, so
one user's rows never change the meaning of another user's:

1. Text as Unicode NFC, without invisible characters (Unicode's default ignorable code points: variation selectors,
   fillers, soft hyphens, joiners), and without white space, blanks and control characters at its ends.
2. `12.0` and `12.` are 12: programs write a column of whole numbers with a gap in this way. `-0` is 0.
3. An empty text, and every spelling in `MISSING` in upper or lower case, is a missing id.

Other differences make different ids: case, leading zeros, white space inside. `alike` counts these for a warning.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import polars as pl

from dprec.errors import UserError

MISSING = ("", "null", "nan", "-nan", "none", "na", "n/a", "#n/a", "<na>", "nat", "nil", "undefined", r"\n")

_IGNORED = r"\p{Default_Ignorable_Code_Point}"
_EDGES = r"^[\s\p{Cc}\p{Cf}\x{2800}]+|[\s\p{Cc}\p{Cf}\x{2800}]+$"  # U+2800 is braille without a dot
_WHOLE = r"^(-?[0-9]+)\.0*$"
# Spreadsheets and data frames write long numbers like this: the last digits, which distinguish people, are lost.
_ROUNDED = r"^-?[0-9]+(\.[0-9]+)?[eE]\+[0-9]+$|^-?[0-9]+\.[0-9]+[eE][0-9]+$"


def normal(ids: pl.Expr) -> pl.Expr:
    """Ids in the form in which they are compared; null for a missing id.

    >>> frame = pl.DataFrame({"user": ["12", " 12 ", "12.0", "012", "-0", "NULL", None]})
    >>> frame.select(normal(pl.col("user")))["user"].to_list()
    ['12', '12', '12', '012', '0', None, None]
    """
    shown = ids.cast(pl.String).str.replace_all(_IGNORED, "").str.normalize("NFC").str.replace_all(_EDGES, "")
    text = shown.str.replace(_WHOLE, "$1").str.replace("^-0$", "0")
    return pl.when(~text.str.to_lowercase().is_in(MISSING)).then(text)


def normal_texts(ids: Iterable[str]) -> list[str | None]:
    """The same for a list of ids.

    >>> normal_texts([" 7.0", "nan"])
    ['7', None]
    """
    return pl.select(normal(pl.lit(pl.Series(list(ids), dtype=pl.String)))).to_series().to_list()


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows in the order of their `id`: whole numbers by value, then all others by text.

    Which of two ids comes first does not hang on a third: an item of one user, which may not even be kept, would
    reorder all others, and a saved catalogue shows their order.

    >>> in_order(pl.DataFrame({"id": ["b", "10", "9", "1e3", "09"]}))["id"].to_list()
    ['09', '9', '10', '1e3', 'b']
    """
    value = pl.when(pl.col("id").str.contains(r"^[0-9]{1,18}$")).then(pl.col("id")).cast(pl.Int64)
    return frame.sort(value, "id", nulls_last=True)


def alike(ids: pl.Series) -> int:
    """How many ids differ from another one only in case, width, leading zeros or white space.

    >>> alike(pl.Series(["ann", "Ann", "a nn", "bob", "7", "007"]))
    5
    """
    loose = ids.str.normalize("NFKC").str.to_lowercase().str.replace_all(r"\s", "").str.replace(r"^0+", "")
    return int((~loose.is_unique()).sum())


def refuse_rounded(read: pl.DataFrame, path: Path, role: str) -> None:
    """Refuse ids that are rounded numbers: one such id may stand for many people."""
    rounded, spelled = read["id"].str.contains(_ROUNDED), read["spelled"]
    if spelled.dtype.is_float():
        exact = 2**53 if spelled.dtype == pl.Float64 else 2**24
        rounded = spelled.is_finite() & (spelled.abs() > exact)
    if rounded.any():
        raise UserError(
            f"{path}: {role} id {spelled.filter(rounded)[0]} is a rounded number, which may stand for several {role}s: "
            "write ids as whole numbers or text"
        )
