"""Readers of interaction logs: MovieLens and Amazon files, `user item` pairs, CSV, TSV, JSON lines
and Parquet.

All of them give `Interactions`: users grouped, each user's events in time order. Events of one user at
the same time keep the order of the file. Ids are text, so `007` and `7` are two; what is one is said in `ids`.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from dprec.data.events import events
from dprec.data.histories import Interactions
from dprec.errors import UserError

Format = Literal["auto", "csv", "tsv", "jsonl", "parquet", "pairs", "movielens-dat", "movielens-tab", "amazon-csv"]

# Names that logs use for these columns, in order of preference, without case, `_`, `-` and spaces.
_GUESSES = {
    "user": ("userid", "user", "uid", "reviewerid", "customerid", "visitorid", "memberid"),
    "item": ("itemid", "item", "iid", "movieid", "productid", "parentasin", "asin", "bookid", "trackid"),
    "time": ("timestamp", "time", "ts", "unixreviewtime", "datetime", "date", "eventtime"),
}
JSON_EVENT = '{"user_id": "a", "item_id": "b", "timestamp": 1588615855}'


def read_interactions(
    path: str | Path,
    format: Format = "auto",
    user_column: str | None = None,
    item_column: str | None = None,
    time_column: str | None = None,
) -> Interactions:
    """Read a log. "auto" goes by the file's name, then by its first line; text files may be gzipped.

    CSV, TSV, JSON lines and Parquet have named columns, guessed where none is given; times are numbers or ISO dates.
    The header of a CSV file says whether it is separated by `,`, `;`, tab or `|`. Where no column has times,
    rows are in time order, as in `pairs`, which holds `user item` a line. Amazon's ratings (`amazon-csv`) are
    user,item,rating,time without a header. Ids are numbered in the order of their text, or of their value where all
    of them are whole numbers: it says nothing about the events.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {path}: put the interaction log there or set data.path")
    if format not in get_args(Format):
        raise UserError(f"data.format is '{format}': give one of {', '.join(get_args(Format))}")
    kind = _format_of(path) if format == "auto" else format
    columns = {"user": user_column, "item": item_column, "time": time_column}
    if kind in ("csv", "tsv", "jsonl", "parquet"):
        frame = _read_table(path, kind, columns)
    elif any(columns.values()):
        raise UserError(f"{path} ({kind}) has no named columns: leave data.user_column and the others out")
    else:
        frame = _read_pairs(path) if kind == "pairs" else _read_ratings(path, kind)
    return events(frame, path)


def _first_line(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if zipped else open(path, "rb") as file:
            lines = (line.decode("utf-8-sig", errors="replace").rstrip("\r\n") for line in file)
            return next((line for line in lines if line.strip()), "")
    except (OSError, EOFError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _format_of(path: Path) -> Format:
    name = path.name.removesuffix(".gz")
    if name.endswith((".parquet", ".pq")):
        return "parquet"
    if name.endswith((".jsonl", ".ndjson")):
        return "jsonl"
    line = _first_line(path)
    if name == "u.data":
        return "movielens-tab"
    if line.count("::") == 3:
        return "movielens-dat"
    if re.fullmatch(r"[^,]+,[^,]+,\d(\.\d)?,\d{9,}", line.strip()):
        return "amazon-csv"
    if name.endswith((".csv", ".tsv")):
        return "tsv" if name.endswith(".tsv") else "csv"
    if len(line.split()) == 2 or not line.strip():
        return "pairs"
    raise UserError(
        f"cannot tell the format of {path} from its name or first line: set data.format to one of "
        f"{', '.join(get_args(Format)[1:])}"
    )


def _not_utf8(path: Path) -> UserError:
    return UserError(f"{path} is not UTF-8 text: convert it, such as with iconv -f latin1 -t utf-8")


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """What polars says about a broken file, as one line."""
    try:
        yield
    except pl.exceptions.NoDataError as error:
        raise UserError(f"{path} is empty: an interaction log has at least one event") from error
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        if "utf-8" in str(error).lower():
            raise _not_utf8(path) from error
        if "more fields" in str(error):
            raise UserError(f"{path} has lines with more fields than the first: mend or quote them") from error
        raise UserError(f"cannot read {path}: {str(error).strip().splitlines()[0]}") from error


def _read_table(path: Path, kind: str, wanted: dict[str, str | None]) -> pl.DataFrame:
    names, separator = _names(path, kind)
    found = {role: _column(path, names, role, column) for role, column in wanted.items()}
    columns = {role: name for role, name in found.items() if name is not None}
    if columns["user"] == columns["item"]:
        raise UserError(
            f"{path}: '{columns['user']}' would be both user and item: set data.user_column and item_column"
        )
    chosen = {role: pl.col(name) for role, name in columns.items()}
    with _one_line(path):
        if kind == "parquet":
            return pl.scan_parquet(path).select(**chosen).collect()
        # Everything is read as text: ids keep their leading zeros and times are parsed in one place.
        if kind == "jsonl":
            return pl.read_ndjson(path, schema=dict.fromkeys(columns.values(), pl.String)).select(**chosen)
        table = pl.read_csv(path, separator=separator, columns=sorted(set(columns.values())), infer_schema=False)
        return table.select(**chosen)


def _names(path: Path, kind: str) -> tuple[list[str], str]:
    """The columns' names, and what separates them in a CSV file."""
    if kind == "parquet":
        with _one_line(path):
            return list(pl.read_parquet_schema(path)), ""
    line = _first_line(path)
    if not line:
        raise UserError(f"{path} is empty: give {'a header line and ' if kind != 'jsonl' else ''}at least one event")
    if "\ufffd" in line:
        raise _not_utf8(path)
    if kind == "jsonl":
        with suppress(json.JSONDecodeError):
            if isinstance(found := json.loads(line), dict):
                return list(found), ""
        raise UserError(f"{path} line 1 is not a JSON object: give one event a line, such as {JSON_EVENT}")
    cells = {mark: next(csv.reader([line], delimiter=mark)) for mark in (",;\t|" if kind == "csv" else "\t")}
    separator, names = max(cells.items(), key=lambda pair: len(pair[1]))  # of equals the first
    return names, separator


def _column(path: Path, names: Sequence[str], role: str, wanted: str | None) -> str | None:
    """The name of a role's column; None for times that nobody named and no column looks like."""
    if wanted is not None:
        if wanted in names:
            return wanted
        problem = f"{path} has no column '{wanted}' (data.{role}_column)"
    else:
        plain = {name.lower().translate(str.maketrans("", "", "_- ")): name for name in reversed(names)}
        for guess in _GUESSES[role]:
            if guess in plain:
                return plain[guess]
        problem = f"{path} has no column that looks like the {role}: set data.{role}_column"
        if role == "time":
            print(f"{problem}, or else the order of its rows counts as their order in time", file=sys.stderr)
            return None
    headless = any(re.fullmatch(r"-?\d+(\.\d+)?", name.strip()) for name in names)
    hint = "; is there a header line?" if headless else ""
    raise UserError(f"{problem}; its columns are {', '.join(names)}{hint}")


def _read_pairs(path: Path) -> pl.DataFrame:
    with _one_line(path):
        lines = pl.read_csv(path, has_header=False, separator="\n", quote_char=None, infer_schema=False)
    text = lines.to_series(0).str.strip_chars()
    pairs = text.str.extract_groups(r"^(\S+)\s+(\S+)$").struct.unnest()
    pairs.columns = ["user", "item"]
    wrong = pairs["user"].is_null() & (text != "")
    if wrong.any():
        row = wrong.arg_max() or 0
        raise UserError(f"{path} line {row + 1} is not a `user item` pair: '{text[row]}'")
    return pairs.filter(text.is_not_null() & (text != ""))


# Separator and places of user, item and time. polars separates by one byte: `::` has an empty column between any two.
_RATINGS = {"movielens-tab": ("\t", (0, 1, 3)), "movielens-dat": (":", (0, 2, 6)), "amazon-csv": (",", (0, 1, 3))}


def _read_ratings(path: Path, kind: str) -> pl.DataFrame:
    separator, places = _RATINGS[kind]
    with _one_line(path):
        table = pl.read_csv(path, has_header=False, separator=separator, quote_char=None, infer_schema=False)
    if table.width <= places[-1]:
        raise UserError(f"{path} is not {kind}: a line has user, item, rating and time")
    frame = table.select(pl.nth(place).alias(role) for place, role in zip(places, _GUESSES, strict=True))
    if kind == "amazon-csv":
        ten = frame.select((pl.col(role).str.len_chars() == 10).mean() for role in ("user", "item")).row(0)
        if ten[0] > 0.9 > ten[1]:  # a later release; read as it stands, items would be protected and users not
            raise UserError(f"{path} has item,user,rating,timestamp a line: swap the first two columns")
    return frame
