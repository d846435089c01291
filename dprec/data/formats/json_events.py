"""JSON: an object for each event, one a line or all in one array."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from dprec.data.formats.format import Start, Wanted, text_of
from dprec.data.formats.named import NamedFormat, first_text
from dprec.data.formats.table import Table
from dprec.errors import UserError

EXAMPLE = '{"user_id": "a", "item_id": "b", "timestamp": 1588615855}'


class JSONLines(NamedFormat):
    name = "jsonl"
    endings = (".jsonl", ".ndjson")
    says_columns_once = False

    def recognises(self, start: Start) -> bool:
        return super().recognises(start) or (start.ending == ".json" and not _is_array(start))

    def names(self, path: Path, part: Path) -> list[str]:
        found = _object(first_text(path, part, "at least one event"))
        if found is not None:
            return list(found)
        raise UserError(f"{part} line 1 is not a JSON object: give one event a line, such as {EXAMPLE}")

    def table(self, path: Path, part: Path, wanted: Wanted) -> Table:
        found = super().table(path, part, wanted)
        found.broken = lambda quote: self._broken(path)
        return found

    def _broken(self, path: Path) -> int | None:
        """Return the first line that is no object."""
        with suppress(OSError, EOFError, zlib.error, UnicodeDecodeError), text_of(path) as file:
            return next((n for n, line in enumerate(file, start=1) if line.strip() and _object(line) is None), None)
        return None

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return pl.scan_ndjson(path, schema=dict.fromkeys(wanted, pl.String))


class JSONArray(NamedFormat):
    """Polars holds the whole array in memory."""

    name = "json"
    endings = (".json",)
    says_columns_once = False

    def recognises(self, start: Start) -> bool:
        return super().recognises(start) and _is_array(start)

    def names(self, path: Path, part: Path) -> list[str]:
        return pl.read_json(path).columns

    def scan(self, path: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return pl.read_json(path, schema=dict.fromkeys(wanted, pl.String)).lazy()


def _object(line: str) -> dict[str, Any] | None:
    with suppress(json.JSONDecodeError):
        if isinstance(found := json.loads(line), dict):
            return found
    return None


def _is_array(start: Start) -> bool:
    return start.line.lstrip().startswith("[")
