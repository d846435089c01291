"""Formats of logs: one class `Format` for each, all listed in `FORMATS`.

To add one, write a class beside those of `columnar`, which are the shortest, and enter an object of it below.
`wanted` has the columns to read and `data.where`; `format` reads rows a batch at a time.
"""

from __future__ import annotations

from pathlib import Path

from dprec.data.formats.columnar import Feather, Parquet
from dprec.data.formats.format import Format, Start, refuse_unreadable
from dprec.data.formats.text import AMAZON, CSV, GLUE, MOVIELENS_DAT, MOVIELENS_TAB, TSV, Inter, JSONLines, Pairs
from dprec.errors import UserError

AUTO = "auto"
# The first that recognises a file reads it.
FORMATS: tuple[Format, ...] = (
    Parquet(),
    Feather(),
    JSONLines(),
    MOVIELENS_TAB,
    MOVIELENS_DAT,
    AMAZON,
    Inter(),
    CSV(),
    TSV(),
    GLUE(),
    Pairs(),
)
ENDINGS = tuple(ending for each in FORMATS for ending in each.endings)


def refuse_unknown(name: str) -> None:
    names = [AUTO, *(each.name for each in FORMATS)]
    if name not in names:
        raise UserError(f"data.format is '{name}': give one of {', '.join(names)}")


def format_of(part: Path, name: str = AUTO) -> Format:
    """The format with this name; "auto" asks each format about the part's name and first line."""
    refuse_unreadable(part)
    start = Start(part)
    for each in FORMATS:
        if each.name == name or (name == AUTO and each.recognises(start)):
            return each
    raise UserError(
        f"cannot tell the format of {part} from its name or first line: set data.format to one of "
        f"{', '.join(each.name for each in FORMATS)}"
    )
