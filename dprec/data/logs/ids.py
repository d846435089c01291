"""Ids of users, items and values: which spellings are the same id, and how ids become numbers.

A person whose id is written in two ways must not become two protected users. All readers, catalogues and histories of
`recommend` use this file. The rules treat each id by itself, so one user's rows never change the meaning of another
user's:

1. Text as Unicode NFC, without invisible characters (Unicode's default ignorable code points: variation selectors,
   fillers, soft hyphens, joiners), and without white space, blanks and control characters at its ends.
2. `12.0` and `12.` are 12: programs write a column of whole numbers with a gap in this way. `-0` is 0.
3. An empty text, and every spelling in `MISSING` in upper or lower case, is a missing id.

Other differences make different ids: case, leading zeros, white space inside. `alike` counts these for a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import polars as pl

from dprec.errors import UserError
from dprec.notices import say

NOBODY = -1
_DIRECT = 2**26  # whole numbers below it are looked up by their value
_POWERS = 10 ** np.arange(1, 8)
MISSING = ("", "null", "nan", "-nan", "none", "na", "n/a", "#n/a", "<na>", "nat", "nil", "undefined", r"\n")

_IGNORED = r"\p{Default_Ignorable_Code_Point}"
_EDGES = r"^[\s\p{Cc}\p{Cf}\x{2800}]+|[\s\p{Cc}\p{Cf}\x{2800}]+$"  # U+2800 is braille without a dot
_WHOLE = r"^(-?[0-9]+)\.0*$"
# Spreadsheets and data frames write long numbers in this way: the last digits, which distinguish people, are lost.
_ROUNDED = r"^-?[0-9]+(\.[0-9]+)?[eE]\+[0-9]+$|^-?[0-9]+\.[0-9]+[eE][0-9]+$"


def normal(ids: pl.Expr) -> pl.Expr:
    """Return ids as they are compared; null for a missing id.

    >>> frame = pl.DataFrame({"user": ["12", " 12 ", "12.0", "012", "-0", "NULL", None]})
    >>> frame.select(normal(pl.col("user")))["user"].to_list()
    ['12', '12', '12', '012', '0', None, None]
    """
    shown = ids.cast(pl.String).str.replace_all(_IGNORED, "").str.normalize("NFC").str.replace_all(_EDGES, "")
    text = shown.str.replace(_WHOLE, "$1").str.replace("^-0$", "0")
    return pl.when(~text.str.to_lowercase().is_in(MISSING)).then(text)


def normal_texts(ids: Iterable[str]) -> list[str | None]:
    """`normal` for a list of ids.

    >>> normal_texts([" 7.0", "nan"])
    ['7', None]
    """
    return pl.select(normal(pl.lit(pl.Series(list(ids), dtype=pl.String)))).to_series().to_list()


def in_order(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows in the order of their `id`: whole numbers by value, then all others by text.

    The order of two ids must not depend on a third. Otherwise an item of one user, even one that is not kept, could
    reorder all others, and a saved catalogue shows their order.

    >>> in_order(pl.DataFrame({"id": ["b", "10", "9", "1e3", "09"]}))["id"].to_list()
    ['09', '9', '10', '1e3', 'b']
    """
    value = pl.when(pl.col("id").str.contains(r"^[0-9]{1,18}$")).then(pl.col("id")).cast(pl.Int64)
    return frame.sort(value, "id", nulls_last=True)


def alike(ids: pl.Series) -> int:
    """Count the ids that differ from another one only in case, width, leading zeros or white space.

    >>> alike(pl.Series(["ann", "Ann", "a nn", "bob", "7", "007"]))
    5
    """
    if ids.str.contains(r"^(0|[1-9][0-9]*)$").all():  # such as all whole numbers, of which none is alike
        return 0
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


class Ids:
    """One column's ids while a log is read: numbered by first appearance; all spellings of an id get one number.

    Each spelling is processed once, for any number of rows. At the end, `numbered` sorts the ids. Whole numbers that
    are not large are looked up by value in a table, in a fifth of the time of a look-up by text.

    >>> ids = Ids(Path("log.csv"), "user")
    >>> ids.read(pl.Series(["7", "ann", " 7", "NULL", "7.0"])).tolist()
    [0, 1, 0, -1, 0]
    >>> names, place = ids.numbered(np.array([0, 1]))
    >>> names.to_list(), place[:2].tolist()
    (['7', 'ann'], [0, 1])
    """

    def __init__(self, path: Path, role: str) -> None:
        self.path, self.role = path, role
        self._spellings, self._ids = (pl.Categorical(pl.Categories.random()) for _ in range(2))
        # polars forgets categories that no series uses
        self._used = [pl.Series([], dtype=kind) for kind in (self._spellings, self._ids)]
        self._id_of = np.empty(0, dtype=np.int32)  # from the number of a spelling to that of its id
        self._by_value = np.empty(0, dtype=np.int32)  # the number of each whole number; NOBODY if it has not occurred

    def read(self, column: pl.Series) -> np.ndarray:
        """(n,) int32: the numbers of a batch's ids; NOBODY for a missing one."""
        if not (column.dtype.is_integer() or column.dtype == pl.String):
            return self._read(column)
        value = column.cast(pl.Int64, strict=False).fill_null(-1).to_numpy()
        plain = (value >= 0) & (value < _DIRECT)
        if column.dtype == pl.String:  # casts would read `+7` and `007` as numbers, too
            plain &= _digits(value) == column.str.len_bytes().fill_null(0).to_numpy()
        value = np.where(plain, value, 0)
        if len(value) and (most := int(value.max())) >= len(self._by_value):
            more = np.full(max(most + 1, 2 * len(self._by_value)) - len(self._by_value), NOBODY, dtype=np.int32)
            self._by_value = np.concatenate([self._by_value, more])
        new = value[plain & (self._by_value[value] == NOBODY)]
        place = np.arange(len(new), dtype=np.int32)
        self._by_value[new] = place
        new = new[self._by_value[new] == place]  # each once
        self._by_value[new] = self._read(pl.Series(new))
        found = self._by_value[value]
        if not plain.all():
            found[~plain] = self._read(column.filter(pl.Series(~plain)))
        return found

    def _read(self, column: pl.Series) -> np.ndarray:
        spelled = _numbers(column.cast(pl.String), self._spellings)
        new = spelled >= len(self._id_of)
        if new.any():
            found = pl.DataFrame({"spelled": column, "number": spelled}).filter(pl.Series(new))
            found = found.unique("number").sort("number").with_columns(id=normal(pl.col("spelled")))
            refuse_rounded(found, self.path, self.role)
            self._id_of = np.concatenate([self._id_of, _numbers(found["id"], self._ids)])
        return np.append(self._id_of, np.int32(NOBODY))[spelled]

    def numbered(self, ids: np.ndarray) -> tuple[pl.Series, np.ndarray]:
        """Return the distinct ids among these, sorted, and each one's place by its number, NOBODY for others."""
        there = np.zeros(int(self._id_of.max(initial=NOBODY)) + 1, dtype=bool)
        there[ids] = True
        numbers = np.flatnonzero(there).astype(np.uint32)
        frame = in_order(
            pl.DataFrame({"number": numbers}).with_columns(id=pl.col("number").cat.to(self._ids).cast(pl.String))
        )
        place = np.full(len(there), NOBODY, dtype=np.int32)
        place[frame["number"].to_numpy()] = np.arange(len(frame), dtype=np.int32)
        return frame["id"], place

    def merged(self, place: np.ndarray) -> int:
        """Return, and print, how many more spellings than ids the log has, of ids that have a place."""
        kept = int((place >= 0).sum())
        merged = int((place[self._id_of[self._id_of >= 0]] >= 0).sum()) - kept
        if merged:
            say(
                f"{self.path}: {merged:,} more spellings of {self.role} ids were merged (white space, 12.0 for 12, "
                f"Unicode forms): {kept:,} {self.role}s"
            )
        return merged

    def say_without(self, rows: int) -> None:
        """Print that `rows` rows, at least one, have no id."""
        said = ("row has", "is") if rows == 1 else ("rows have", "are")
        say(f"{self.path}: {rows:,} {said[0]} no {self.role} id and {said[1]} left out")

    def warn_of_alike(self, ids: pl.Series) -> None:
        """Warn of distinct ids that may be the same person's or item's: guarantees count them separately."""
        if similar := alike(ids):
            say(
                f"warning: {self.path}: {similar:,} {self.role} ids differ from another only in case, width, "
                f"leading zeros or inner white space: merge those that are one {self.role}"
            )


def _numbers(texts: pl.Series, kind: pl.Categorical) -> np.ndarray:
    """(n,) int32: each text's number among all of a kind, by first appearance; NOBODY if it is missing."""
    return texts.cast(kind).to_physical().cast(pl.Int32).fill_null(NOBODY).to_numpy()


def _digits(numbers: np.ndarray) -> np.ndarray:
    """How many digits each of these numbers has, up to 8; 1 for a negative one."""
    digits = np.ones(len(numbers), dtype=np.uint8)
    for power in _POWERS:
        digits += numbers >= power
    return digits


def hash_of(value: str) -> int:
    """A hash from 1 to 2^32 - 1, the same on every machine.

    >>> hash_of("ann") == hash_of("ann") != hash_of("bob")
    True
    """
    return max(1, digest_of(value, 4))


def digest_of(value: str, size: int = 8) -> int:
    """Return a hash of a text of `size` bytes, the same on every machine, as a number."""
    return int.from_bytes(blake2b(value.encode(), digest_size=size).digest(), "little")


def hashes_of(values: pl.Series) -> list[int]:
    """Return `hash_of` of each value."""
    return [hash_of(value) for value in values]


def codes(column: pl.Series, code: Callable[[pl.Series], Sequence[int] | np.ndarray] = hashes_of) -> np.ndarray:
    """(n,) uint32: the code of each value, normalised as ids are; 0 if it is missing. `code` gets each value once.

    >>> codes(pl.Series(["a", " a ", None, "b"]), lambda values: [ord(value) for value in values]).tolist()
    [97, 97, 0, 98]
    """
    if column.dtype.is_float():
        rounded = column.filter(column.is_finite() & (column.abs() > (2**53 if column.dtype == pl.Float64 else 2**24)))
        if len(rounded):
            raise UserError(f"column '{column.name}' has {rounded[0]}, a rounded number: write whole numbers or text")
    raw = column.cast(pl.String).rename("raw").to_frame()
    read = raw.unique().with_columns(value=normal(pl.col("raw"))).drop_nulls()
    known = read.select("raw", code=pl.Series(code(read["value"]), dtype=pl.UInt32))
    return raw.join(known, on="raw", how="left", maintain_order="left")["code"].fill_null(0).to_numpy()


def bucket_ids(hashes: np.ndarray, vocabularies: np.ndarray) -> np.ndarray:
    """Ids 1..V - 1 of 32-bit hashes, 0 for hash 0 (missing). The id of a value depends on no other value.

    >>> bucket_ids(np.array([[0, 9], [1, 10], [7, 12]], dtype=np.uint32), np.array([4, 11]))
    array([[ 0,  9],
           [ 1, 10],
           [ 1,  2]])
    """
    signed = hashes.astype(np.int64)
    return np.where(signed == 0, 0, (signed - 1) % (vocabularies - 1) + 1)
