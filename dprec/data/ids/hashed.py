"""A number for each value of a column, which follows from the value alone, so that it says nothing about the data."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

import numpy as np
import polars as pl

from dprec.data.ids.spelling import normal
from dprec.errors import UserError


def hash_of(value: str) -> int:
    """A hash from 1 to 2^32 - 1, the same on every machine.

    >>> hash_of("ann") == hash_of("ann") != hash_of("bob")
    True
    """
    return max(1, digest_of(value, 4))


def digest_of(value: str, size: int = 8) -> int:
    """So many bytes, the same on every machine, that follow from a text."""
    return int.from_bytes(blake2b(value.encode(), digest_size=size).digest(), "little")


def codes(column: pl.Series, code: Callable[[str], int] = hash_of) -> np.ndarray:
    """(n,) uint32: the code of each value, written as ids are; 0 where it is missing.

    >>> codes(pl.Series(["a", " a ", None, "b"]), {"a": 1, "b": 2}.__getitem__).tolist()
    [1, 1, 0, 2]
    """
    if column.dtype.is_float():
        rounded = column.filter(column.is_finite() & (column.abs() > (2**53 if column.dtype == pl.Float64 else 2**24)))
        if len(rounded):
            raise UserError(f"column '{column.name}' has {rounded[0]}, a rounded number: write whole numbers or text")
    raw = column.cast(pl.String).rename("raw").to_frame()
    read = raw.unique().with_columns(value=normal(pl.col("raw"))).drop_nulls()
    known = read.select("raw", code=pl.Series([code(value) for value in read["value"]], dtype=pl.UInt32))
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
