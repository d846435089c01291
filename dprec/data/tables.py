"""Parts of a log as tables: which columns hold users, items and times, and their rows a batch at a time."""

from __future__ import annotations

import csv
import gzip
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from dprec.data.conditions import Condition
from dprec.errors import UserError

Format = Literal[
    "auto",
    "csv",
    "tsv",
    "jsonl",
    "json",
    "parquet",
    "feather",
    "pairs",
    "movielens-dat",
    "movielens-tab",
    "amazon-csv",
]

# Names of these columns in logs, in order of preference, in lower case and without `_`, `-` and spaces.
GUESSES = {
    "user": ("userid", "user", "uid", "reviewerid", "customerid", "visitorid", "memberid"),
    "item": ("itemid", "item", "iid", "movieid", "productid", "parentasin", "asin", "bookid", "trackid"),
    "time": ("timestamp", "time", "ts", "unixreviewtime", "datetime", "date", "eventtime"),
}
_OF_DAY = ("time", "eventtime")  # may be a time of day without the day
_DAYS = ("date", "day", "eventdate")
JSON_EVENT = '{"user_id": "a", "item_id": "b", "timestamp": 1588615855}'
_ENDINGS: dict[str, Format] = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".feather", ".arrow", ".ipc"), "feather"),
    **dict.fromkeys((".jsonl", ".ndjson"), "jsonl"),
    **dict.fromkeys((".csv",), "csv"),
    **dict.fromkeys((".tsv", ".inter"), "tsv"),
}
NAMED: tuple[Format, ...] = ("csv", "tsv", "jsonl", "json", "parquet", "feather")
_TYPED = re.compile(r":(token|float|token_seq|float_seq)$")  # of RecBole's headers
ROWS = 2**20  # in a batch


@dataclass
class Table:
    """A part; its rows are read when they are asked for."""

    part: Path  # the path that the user gave
    frame: pl.LazyFrame
    events: Callable[[pl.DataFrame], pl.DataFrame]  # a batch of rows to columns user, item and perhaps time, and `row`
    where: Condition | None = None
    left_out: int = 0  # rows so far for which `where` does not hold

    def batches(self) -> Iterator[pl.DataFrame]:
        """Rows in order, each with its number in the part, from 0."""
        with one_line(self.part):
            first = 0
            for batch in self.frame.collect_batches(chunk_size=ROWS, maintain_order=True, engine="streaming"):
                rows = batch.with_row_index("row", offset=first)
                first += len(batch)
                if self.where is not None:
                    rows = rows.filter(self.where.holds(batch))
                    self.left_out += len(batch) - len(rows)
                if len(rows):
                    yield self.events(rows)


@contextmanager
def one_line(path: Path) -> Iterator[None]:
    """Turn polars' errors about a broken file into one line."""
    try:
        yield
    except pl.exceptions.NoDataError as error:
        raise UserError(f"{path} is empty: an interaction log has at least one event") from error
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        if "utf-8" in str(error).lower():
            raise not_utf8(path) from error
        if "more fields" in str(error):
            raise UserError(f"{path} has lines with more fields than the first: mend or quote them") from error
        raise UserError(f"cannot read {path}: {str(error).strip().splitlines()[0]}") from error


def not_utf8(path: Path) -> UserError:
    return UserError(f"{path} is not UTF-8 text: convert it, such as with iconv -f latin1 -t utf-8")


def first_line(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            start = file.read(4)
        zipped = start.startswith(b"\x1f\x8b")
        if start == b"\x28\xb5\x2f\xfd":  # Zstandard, which Python cannot read
            return _lines(path).head(1).collect().item()
        with gzip.open(path, "rb") if zipped else open(path, "rb") as file:
            lines = (line.decode("utf-8-sig", errors="replace").rstrip("\r\n") for line in file)
            return next((line for line in lines if line.strip()), "")
    except (OSError, EOFError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def format_of(path: Path, name: str) -> Format:
    """The format of a file, from the name of its part, then from its first line."""
    ending = Path(name).suffix
    if _ENDINGS.get(ending) in ("parquet", "feather", "jsonl"):
        return _ENDINGS[ending]
    line = first_line(path)
    if ending == ".json":
        return "json" if line.lstrip().startswith("[") else "jsonl"
    if name == "u.data":
        return "movielens-tab"
    if line.count("::") == 3:
        return "movielens-dat"
    if re.fullmatch(r"[^,]+,[^,]+,\d(\.\d)?,\d{9,}", line.strip()):
        return "amazon-csv"
    if ending in _ENDINGS:
        return _ENDINGS[ending]
    words = line.split()
    if len(words) == 2 or not words or (len(words) == 3 and re.fullmatch(r"-?\d+(\.\d+)?", words[2])):
        return "pairs"
    raise UserError(
        f"cannot tell the format of {path} from its name or first line: set data.format to one of "
        f"{', '.join(get_args(Format)[1:])}"
    )


def named_table(path: Path, part: Path, kind: str, columns: Mapping[str, str], where: str | None) -> Table:
    """A table with a header. Text files are read as text: ids keep their zeros, and `times` parses all times."""
    names, separator = header(path, part, kind)
    for role, name in columns.items():
        if name not in names:
            raise UserError(
                f"{part} has no column '{name}', the {role} in another part: give all parts the same columns"
            )
    condition = None if where is None else Condition.read(where, part, names, lambda: _types(path, kind, separator))
    wanted = list(dict.fromkeys([*columns.values(), *(condition.columns if condition else ())]))
    with one_line(part):
        if kind == "parquet":
            frame = pl.scan_parquet(path)
        elif kind == "feather":
            frame = pl.scan_ipc(path)
        elif kind == "jsonl":
            frame = pl.scan_ndjson(path, schema=dict.fromkeys(wanted, pl.String))
        elif kind == "json":
            frame = pl.read_json(path, schema=dict.fromkeys(wanted, pl.String)).lazy()
        else:
            frame = pl.scan_csv(path, separator=separator, infer_schema=False)
        frame = frame.select(wanted)
        types = frame.collect_schema()
    lists = _lists(types, columns, part)

    def events(batch: pl.DataFrame) -> pl.DataFrame:
        chosen = batch.select("row", *(pl.col(name).alias(role) for role, name in columns.items()))
        return chosen.explode(lists) if lists else chosen

    return Table(part, frame, events, condition)


def _types(path: Path, kind: str, separator: str) -> Mapping[str, pl.DataType]:
    """The types of columns; for text, guessed from its first rows."""
    if kind == "parquet":
        return pl.read_parquet_schema(path)
    if kind == "feather":
        return pl.read_ipc_schema(path)
    if kind in ("jsonl", "json"):
        return (pl.scan_ndjson(path) if kind == "jsonl" else pl.read_json(path).lazy()).collect_schema()
    return pl.scan_csv(path, separator=separator, infer_schema_length=10_000).collect_schema()


def _lists(types: Mapping[str, pl.DataType], columns: Mapping[str, str], part: Path) -> list[str]:
    """The roles of columns that hold a user's whole history in one row."""
    lists = [role for role, name in columns.items() if isinstance(types[name], pl.List)]
    for role, name in columns.items():
        held = types[name]
        inner = held.inner if isinstance(held, pl.List) else held
        if inner.is_nested() or (role == "user" and role in lists) or inner == pl.Time:
            raise UserError(
                f"{part}: column '{name}' holds {types[name]}, which cannot be the {role}: set data.{role}_column, "
                "or write one event a row"
            )
    if "time" in lists and "item" not in lists:
        raise UserError(f"{part}: '{columns['time']}' holds lists and '{columns['item']}' does not: give both as lists")
    return lists


def header(path: Path, part: Path, kind: str) -> tuple[list[str], str]:
    """The columns' names, and what separates them in a CSV file."""
    with one_line(part):
        if kind == "parquet":
            return list(pl.read_parquet_schema(path)), ""
        if kind == "feather":
            return list(pl.read_ipc_schema(path)), ""
        if kind == "json":
            return list(pl.read_json(path).columns), ""
    line = first_line(path)
    if not line:
        raise UserError(f"{part} is empty: give {'a header line and ' if kind != 'jsonl' else ''}at least one event")
    if "\ufffd" in line:
        raise not_utf8(part)
    if kind == "jsonl":
        with suppress(json.JSONDecodeError):
            if isinstance(found := json.loads(line), dict):
                return list(found), ""
        raise UserError(f"{part} line 1 is not a JSON object: give one event a line, such as {JSON_EVENT}")
    cells = {mark: next(csv.reader([line], delimiter=mark)) for mark in (",;\t|" if kind == "csv" else "\t")}
    separator, names = max(cells.items(), key=lambda pair: len(pair[1]))  # the first of equals
    return names, separator


def choose_columns(part: Path, names: Sequence[str], wanted: Mapping[str, str | None]) -> dict[str, str]:
    """The column of each role, as the user says or by its name; no time if no column looks like one."""
    found = {role: _column(part, names, role, column) for role, column in wanted.items()}
    columns = {role: name for role, name in found.items() if name is not None}
    if columns["user"] == columns["item"]:
        raise UserError(
            f"{part}: '{columns['user']}' would be both user and item: set data.user_column and item_column"
        )
    return columns


def _column(part: Path, names: Sequence[str], role: str, wanted: str | None) -> str | None:
    plain = {_plain(name): name for name in reversed(names)}
    if wanted is not None:
        if wanted in names:
            return wanted
        typed = [name for name in names if _TYPED.sub("", name) == wanted]
        if typed:
            return typed[0]
        problem = f"{part} has no column '{wanted}' (data.{role}_column)"
    else:
        for guess in GUESSES[role]:
            if guess in plain:
                day = next((plain[day] for day in _DAYS if day in plain), None)
                if guess in _OF_DAY and day is not None:
                    raise UserError(
                        f"{part} has '{day}' and '{plain[guess]}': set data.time_column to the right one; "
                        "if one is the day and the other the time of day, join them in one column"
                    )
                return plain[guess]
        problem = f"{part} has no column that looks like the {role}: set data.{role}_column"
        if role == "time":
            print(f"{problem}; without it, the order of the rows counts as their order in time", file=sys.stderr)
            return None
    headless = any(re.fullmatch(r"-?\d+(\.\d+)?", name.strip()) for name in names)
    hint = "; is there a header line?" if headless else ""
    raise UserError(f"{problem}; its columns are {', '.join(names)}{hint}")


def _plain(name: str) -> str:
    return _TYPED.sub("", name.lower()).translate(str.maketrans("", "", "_- "))


def pairs_table(path: Path, part: Path) -> Table:
    """Lines of `user item`, in time order, or of `user item time`, separated by white space."""
    words = 3 if len(first_line(path).split()) == 3 else 2
    pattern = "^" + r"\s+".join([r"(\S+)"] * words) + "$"
    form = " ".join(("user", "item", "time")[:words])

    def events(batch: pl.DataFrame) -> pl.DataFrame:
        text = batch["line"].str.strip_chars()
        found = text.str.extract_groups(pattern).struct.unnest()
        found.columns = ["user", "item", "time"][:words]
        wrong = found["user"].is_null() & (text != "")
        if wrong.any():
            at = wrong.arg_max() or 0
            raise UserError(
                f"{part} line {batch['row'][at] + 1} is not a `{form}` {'pair' if words == 2 else 'line'}: '{text[at]}'"
            )
        return found.insert_column(0, batch["row"]).filter(text.is_not_null() & (text != ""))

    return Table(part, _lines(path), events)


def _lines(path: Path) -> pl.LazyFrame:
    lines = pl.scan_csv(path, has_header=False, separator="\n", quote_char=None, infer_schema=False)
    return lines.select(pl.first().alias("line"))


# Separator and places of user, item, time and rating. polars separates at one byte, so `::` gives an empty column.
_RATINGS = {
    "movielens-tab": ("\t", (0, 1, 3, 2)),
    "movielens-dat": (":", (0, 2, 6, 4)),
    "amazon-csv": (",", (0, 1, 3, 2)),
}


def ratings_table(path: Path, part: Path, kind: str, where: str | None) -> Table:
    """Lines of user, item, rating and time, without a header."""
    separator, places = _RATINGS[kind]
    columns = [*GUESSES, "rating"]
    numbers = dict.fromkeys(("rating", "time"), pl.Float64())
    condition = None if where is None else Condition.read(where, part, columns, lambda: numbers)
    with one_line(part):
        table = pl.scan_csv(path, has_header=False, separator=separator, quote_char=None, infer_schema=False)
        if len(table.collect_schema()) <= max(places):
            raise UserError(f"{part} is not {kind}: each line must have user, item, rating and time")
        frame = table.select(pl.nth(place).alias(role) for place, role in zip(places, columns, strict=True))
        if kind == "amazon-csv":
            start = frame.head(ROWS).select((pl.col(role).str.len_chars() == 10).mean() for role in ("user", "item"))
            ten = start.collect().row(0)
            if ten[0] > 0.9 > ten[1]:  # a later release: its columns would protect items in place of users
                raise UserError(f"{part} has item,user,rating,timestamp a line: swap the first two columns")
    return Table(part, frame, lambda batch: batch.drop("rating"), condition)
