"""Ids as whole numbers while a log is read, and their final order after its end.

A key says which id a row has and how it is spelled. The whole number v has key 4 v if it is written plainly, 4 v + 1 if
it is written in another way (` 7`, `7.0`). The n-th text that is no number has key 4 n + 2. So numbers need no memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from dprec.data.ids.spelling import alike, in_order, normal, refuse_rounded
from dprec.notices import say

NOBODY = -1
_LARGEST = 10**18  # keys of smaller numbers stay within 63 bits
_POWERS = 10 ** np.arange(1, 19)
_OTHERWISE, _TEXT = 1, 2  # the two lowest bits


def identity(keys: np.ndarray) -> np.ndarray:
    """The same key for every spelling of one id."""
    return keys & ~1


class IdKeys:
    """One column's ids.

    >>> ids = IdKeys(Path("log.csv"), "user")
    >>> keys = ids.read(pl.Series(["7", "ann", " 7", "NULL", "7.0"]))
    >>> keys.tolist(), identity(keys).tolist()
    ([28, 2, 29, -1, 29], [28, 2, 28, -2, 28])
    >>> ids.numbered(np.array([2, 28])).to_list(), ids.in_order(np.array([2, 28])).to_list()
    ([1, 0], ['7', 'ann'])
    """

    def __init__(self, path: Path, role: str) -> None:
        self.path, self.role = path, role
        self._spellings = _Dictionary()
        self._keys = np.empty(0, dtype=np.int64)  # of each spelling that is not a plain number
        self._names = _Dictionary()
        self._texts = [pl.Series("id", [], dtype=pl.String)]  # of each name, in their order

    def read(self, column: pl.Series) -> np.ndarray:
        """The keys of a batch's rows; NOBODY for a missing id."""
        whole = column.cast(pl.Int64, strict=False) if column.dtype.is_integer() or column.dtype == pl.String else None
        if whole is None:
            return self._spelled(column)
        value = whole.fill_null(-1).to_numpy()
        plain = (value >= 0) & (value < _LARGEST)
        if column.dtype == pl.String:  # casts would read `+7` and `007` as numbers, too
            plain &= _digits(value) == column.str.len_bytes().fill_null(0).to_numpy()
        keys = 4 * value
        if not plain.all():
            keys[~plain] = self._spelled(column.filter(pl.Series(~plain)))
        return keys

    def _spelled(self, column: pl.Series) -> np.ndarray:
        codes = self._spellings.codes(column.cast(pl.String))
        new = codes >= len(self._keys)
        if new.any():
            found = pl.DataFrame({"spelled": column, "code": codes}).filter(pl.Series(new))
            read = (
                found.unique("code", maintain_order=True).sort("code").select("spelled", id=normal(pl.col("spelled")))
            )
            refuse_rounded(read, self.path, self.role)
            self._keys = np.concatenate([self._keys, self._keys_of(read["id"])])
        return np.where(codes < 0, NOBODY, self._keys[codes] if len(self._keys) else NOBODY)

    def _keys_of(self, ids: pl.Series) -> np.ndarray:
        number = ids.str.contains(r"^(0|[1-9][0-9]{0,17})$").fill_null(False)
        nothing = pl.Series([None], dtype=pl.String)
        whole = ids.zip_with(number, nothing).cast(pl.Int64).fill_null(0).to_numpy()
        ids = ids.zip_with(~number, nothing)
        names = self._names.codes(ids)
        known = sum(map(len, self._texts))
        new = pl.DataFrame({"id": ids, "code": names}).filter(pl.col("code") >= known)
        self._texts.append(new.unique("code").sort("code")["id"])
        return np.select([number.to_numpy(), names >= 0], [4 * whole + _OTHERWISE, 4 * names + _TEXT], NOBODY)

    @property
    def respelled(self) -> bool:
        """Whether any id is not written as a plain number."""
        return len(self._keys) > 0

    def numbered(self, keys: np.ndarray) -> pl.Series:
        """The place of each of these distinct identities among all of them in order; `keys` are ascending."""
        if not self.respelled:
            return pl.int_range(len(keys), dtype=pl.Int64, eager=True)
        ordered = in_order(self.names(keys).to_frame("id").with_row_index("key"))
        return ordered.with_row_index("place").sort("key")["place"].cast(pl.Int64)

    def in_order(self, keys: np.ndarray) -> pl.Series:
        """The ids of these distinct identities, in the order of their numbers."""
        return in_order(self.names(keys).to_frame("id"))["id"] if self.respelled else self.names(keys)

    def names(self, keys: np.ndarray) -> pl.Series:
        """The ids of identities, as text."""
        texts = pl.concat(self._texts)
        is_text = (keys & _TEXT) != 0
        numbers = pl.Series(keys >> 2).cast(pl.String)
        if not is_text.any():
            return numbers.alias("id")
        return numbers.scatter(np.flatnonzero(is_text), texts.gather(keys[is_text] >> 2)).alias("id")

    def say(self, plain: int, keys: np.ndarray) -> int:
        """Print notes about the log's ids; return how many spellings were merged.

        `keys` are the distinct identities that occurred, `plain` says how many of them were plain numbers.
        """
        if not self.respelled:
            return 0
        merged = plain + int(np.isin(identity(self._keys), keys).sum()) - len(keys)
        if merged:
            say(
                f"{self.path}: {merged:,} more spellings of {self.role} ids were merged (white space, 12.0 for 12, "
                f"Unicode forms): {len(keys):,} {self.role}s"
            )
        self.warn_of_alike(keys)
        return merged

    def say_without(self, rows: int) -> None:
        """Say that so many rows, one at least, have no id."""
        said = ("row has", "counts") if rows == 1 else ("rows have", "count")
        say(f"{self.path}: {rows:,} {said[0]} no {self.role} id and {said[1]} for nothing")

    def warn_of_alike(self, keys: np.ndarray) -> None:
        """Say how many of these distinct identities may be one with another: guarantees are for each by itself."""
        if self.respelled and (similar := alike(self.names(keys))):
            say(
                f"warning: {self.path}: {similar:,} {self.role} ids differ from another one by no more than case, "
                f"width, leading zeros or white space inside, and count as {self.role}s of their own: where they are "
                "one, mend the log"
            )


def _digits(numbers: np.ndarray) -> np.ndarray:
    """How many digits each of these numbers has; 1 for a negative one.

    >>> _digits(np.array([0, 9, 10, 123])).tolist()
    [1, 1, 2, 3]
    """
    digits = np.ones(len(numbers), dtype=np.uint8)
    for power in _POWERS[: len(str(numbers.max(initial=0))) - 1]:
        digits += numbers >= power
    return digits


class _Dictionary:
    """Texts, numbered in order of first appearance."""

    def __init__(self) -> None:
        self._type = pl.Categorical(pl.Categories.random())
        self._kept = pl.Series([], dtype=self._type)  # polars forgets categories that no series uses

    def codes(self, texts: pl.Series) -> np.ndarray:
        """Return each text's number, -1 for null."""
        return texts.cast(self._type).to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
