"""Lines of `user item`, in time order, or of `user item time`, without a header and with white space between."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from dprec.data.formats.columns import looks_like
from dprec.data.formats.format import Format, Start, Wanted, first_line
from dprec.data.formats.table import THE_ROWS, Table, lines_of
from dprec.errors import UserError

_TIME = re.compile(r"-?\d+(\.\d+)?|\d{4}-\d\d-\d\d\S*")


class Pairs(Format):
    name = "pairs"
    endings = (".txt",)

    def recognises(self, start: Start) -> bool:
        words = start.line.split()
        return len(words) in (0, 2) or (len(words) == 3 and _TIME.fullmatch(words[2]) is not None)

    def table(self, path: Path, part: Path, wanted: Wanted) -> Table:
        wanted.refuse_columns(part, self.name)
        if wanted.where is not None:
            raise UserError(f"{part} has no other column than user, item and time: leave data.where out")
        first = first_line(path).split()
        if len(first) > 1 and looks_like("user", first[0]) and looks_like("item", first[1]):
            raise UserError(f"{part} starts with a header, '{' '.join(first)}': remove it, or set data.format to tsv")
        words = 3 if len(first) == 3 else 2
        pattern = "^" + r"\s+".join([r"(\S+)"] * words) + "$"
        form = " ".join(("user", "item", "time")[:words])

        def events(batch: pl.DataFrame) -> pl.DataFrame:
            text = batch["line"].str.strip_chars()
            found = text.str.extract_groups(pattern).struct.unnest()
            found.columns = ["user", "item", "time"][:words]
            wrong = found["user"].is_null() & (text != "")
            if wrong.any():
                at = wrong.arg_max() or 0
                kind = "pair" if words == 2 else "line"
                raise UserError(f"{part} line {batch['row'][at] + 1} is not a `{form}` {kind}: '{text[at]}'")
            found = found.insert_column(0, batch["row"]).filter(text.is_not_null() & (text != ""))
            return found.drop("time") if wanted.by_row and words == 3 else found

        time = THE_ROWS if words == 2 or wanted.by_row else "the third word of a line"
        return Table(part, lines_of(path), events, time)
