"""JSON: an object for each event, one a line or all in one array."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import polars as pl

from dprec.data.formats.format import Start
from dprec.data.formats.named import NamedFormat, first_text
from dprec.errors import UserError

EXAMPLE = '{"user_id": "a", "item_id": "b", "timestamp": 1588615855}'


class JSONLines(NamedFormat):
    name = "jsonl"
    endings = (".jsonl", ".ndjson")
    says_columns_once = False

    def recognises(self, start: Start) -> bool:
        return super().recognises(start) or (start.ending == ".json" and not _is_array(start))

    def names(self, path: Path, part: Path) -> list[str]:
        line = first_text(path, part, "at least one event")
        with suppress(json.JSONDecodeError):
            if isinstance(found := json.loads(line), dict):
                return list(found)
        raise UserError(f"{part} line 1 is not a JSON object: give one event a line, such as {EXAMPLE}")

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


def _is_array(start: Start) -> bool:
    return start.line.lstrip().startswith("[")
