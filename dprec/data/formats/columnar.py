"""Parquet, and Arrow's files, which pandas calls Feather."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from dprec.data.formats.named import NamedFormat, Types


class Columnar(NamedFormat):
    """A file that says what its columns are and how many rows it has."""

    def names(self, path: Path, part: Path) -> list[str]:
        return list(self.types(path))

    def rows(self, path: Path) -> int:
        return int(self.scan(path, ()).select(pl.len()).collect().item())


class Parquet(Columnar):
    name = "parquet"
    endings = (".parquet", ".pq")

    def types(self, path: Path) -> Types:
        return pl.read_parquet_schema(path)

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return pl.scan_parquet(path)


class Feather(Columnar):
    name = "feather"
    endings = (".feather", ".arrow", ".ipc")

    def types(self, path: Path) -> Types:
        return pl.read_ipc_schema(path)

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return pl.scan_ipc(path)
