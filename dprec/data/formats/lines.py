"""Text with an event a line and no header: JSON objects, and `user item` or `user item time` lines."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from dprec.data.formats.format import Format, Start, first_line, first_text, lines_of, text_of
from dprec.data.formats.table import Table
from dprec.data.formats.wanted import Wanted, looks_like
from dprec.errors import UserError
from dprec.notices import heard_by

_EXAMPLE = '{"user_id": "a", "item_id": "b", "timestamp": 1588615855}'
_TIME = re.compile(r"-?\d+(\.\d+)?|\d{4}-\d\d-\d\d\S*")


class JSONLines(Format):
    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")
    says_columns_once = False

    def names(self, part: Path) -> list[str]:
        line = first_text(part, "at least one event")
        found = _object(line)
        if found is not None:
            return list(found)
        if line.lstrip().startswith("["):
            raise UserError(f"{part} is an array: write its objects one a line, such as with jq -c '.[]'")
        raise UserError(f"{part} line 1 is not a JSON object: give one event a line, such as {_EXAMPLE}")

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        return pl.scan_ndjson(part, schema=dict.fromkeys(wanted, pl.String))

    def broken(self, part: Path, quote: bool) -> int | None:
        with suppress(OSError, EOFError, zlib.error, UnicodeDecodeError), text_of(part) as file:
            return next((n for n, line in enumerate(file, start=1) if line.strip() and _object(line) is None), None)
        return None


def _object(line: str) -> dict[str, Any] | None:
    with suppress(json.JSONDecodeError):
        if isinstance(found := json.loads(line), dict):
            return found
    return None


class Pairs(Format):
    """Lines of `user item`, in time order, or of `user item time`, with white space between."""

    name = "pairs"
    endings = (".txt",)

    def recognises(self, start: Start) -> bool:
        words = start.line.split()
        return len(words) in (0, 2) or (len(words) == 3 and _TIME.fullmatch(words[2]) is not None)

    def names(self, part: Path) -> list[str]:
        first = first_text(part, "`user item` lines").split()
        if len(first) > 1 and looks_like("user", first[0]) and looks_like("item", first[1]):
            raise UserError(f"{part} starts with a header, '{' '.join(first)}': remove it, or set data.format to tsv")
        return ["user", "item", "time"][: max(2, min(3, len(first)))]

    def table(self, part: Path, wanted: Wanted) -> Table:
        with heard_by(lambda text: None):  # without times its rows are in time order, which goes without saying
            return super().table(part, wanted)

    def scan(self, part: Path, wanted: Sequence[str]) -> pl.LazyFrame:
        names = ["user", "item", "time"][: max(2, min(3, len(first_line(part).split())))]
        pattern = "^" + r"\s+".join([r"(\S+)"] * len(names)) + "$"
        text = pl.col("line").str.strip_chars()
        lines = lines_of(part).with_row_index("number", offset=1).with_columns(text).filter(text != "")
        wrong = lines.filter(~text.str.contains(pattern)).head(1).collect(engine="streaming")
        if len(wrong):
            raise UserError(
                f"{part} line {wrong['number'][0]} is not a `{' '.join(names)}` line: '{wrong['line'][0]}': mend it"
            )
        groups = [pl.col("line").str.extract(pattern, place).alias(name) for place, name in enumerate(names, start=1)]
        return lines.select(groups)
