"""Formats of logs: all that is known of a format is in one `Format`, and all formats are in `FORMATS`.

To add one, write a file here beside `columnar.py`, which is the shortest, and enter its object below. A format whose
columns have names is a `NamedFormat`: names, types and a lazy scan by polars. Others are a `Format` with a `table`.
`compression` has the packed files, for all formats alike.
"""

from __future__ import annotations

from pathlib import Path

from dprec.data.formats.columnar import Feather, Parquet
from dprec.data.formats.compression import unpacked_name
from dprec.data.formats.delimited import CSV, GLUE, TSV, Inter
from dprec.data.formats.format import Format, Start
from dprec.data.formats.json_events import JSONArray, JSONLines
from dprec.data.formats.pairs import Pairs
from dprec.data.formats.ratings import AMAZON, MOVIELENS_DAT, MOVIELENS_TAB
from dprec.errors import UserError

AUTO = "auto"
# The first that recognises a file reads it.
FORMATS: tuple[Format, ...] = (
    Parquet(),
    Feather(),
    JSONLines(),
    JSONArray(),
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


def format_of(file: Path, part: Path, name: str = AUTO) -> Format:
    """The format with this name; "auto" asks each format about the part's name and the file's first line."""
    start = Start(file, unpacked_name(part if file == part else file))
    for each in FORMATS:
        if each.name == name or (name == AUTO and each.recognises(start)):
            return each
    raise UserError(
        f"cannot tell the format of {part} from its name or first line: set data.format to one of "
        f"{', '.join(each.name for each in FORMATS)}"
    )


def rows_about(part: Path) -> int:
    """About how many rows a part has, for a progress bar."""
    name = unpacked_name(part)
    return next((each for each in FORMATS if name.endswith(each.endings)), FORMATS[-1]).rows(part)
