"""Requests and answers in files: one history a line, logs with all their users, and tables of answers."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from dprec.data.formats import AUTO
from dprec.data.formats.format import lines_in
from dprec.data.formats.wanted import looks_like
from dprec.data.logs.histories import Interactions
from dprec.data.logs.interactions import is_prepared, open_prepared, read_interactions
from dprec.data.logs.parts import local
from dprec.errors import UserError
from dprec.run.saved.folder import replace_file

_TIME = re.compile(r"\d{9,19}(\.\d+)?|\d{4}-\d\d-\d\d\S*")  # seconds or finer units since 1970, or an ISO date


class HistoryLine(NamedTuple):
    """Raw item ids or events, oldest first, and the user if the line names one."""

    where: str
    history: list[Any]
    user: str | None = None


def split_ids(text: str, known: Callable[[str], bool]) -> list[str]:
    """Split ids at commas or white space; a text between commas that is an item's id is not split further.

    >>> split_ids("12, 7 95", {"7", "95"}.__contains__), split_ids("SKU 7, 12", {"SKU 7"}.__contains__)
    (['12', '7', '95'], ['SKU 7', '12'])
    """
    parts = [part.strip() for part in text.split(",")]
    return [raw for part in parts for raw in ([part] if known(part) else part.split())]


def read_lines(file: str) -> list[str]:
    """Return the lines of a text file, or with `-` of standard input."""
    try:
        return lines_in(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file} ({error}): give a text file in UTF-8") from None


def read_histories(file: str, known: Callable[[str], bool]) -> list[HistoryLine]:
    """Read one history a line: ids as in ``--history``, or in a .jsonl file a list of ids, or of events with context.

    A JSON line may also be an object with a ``history`` and optionally a ``user``, so the command can read its own
    output. `-` is standard input, whose first line shows whether it is JSON. A log with one event a line is refused:
    its users and times would count as items. ``known`` tells whether an id is an item.
    """
    lines = [(f"{file}, line {number}", line) for number, line in enumerate(read_lines(file), 1) if line.strip()]
    if not lines:
        raise UserError(f"{file} is empty: give one history a line")
    if file == "-":  # it has no name
        is_json = lines[0][1].lstrip().startswith(("[", "{"))
    else:
        is_json = Path(file).suffix in (".jsonl", ".json", ".ndjson")
    if is_json:
        return [_from_json(where, line) for where, line in lines]
    _refuse_log([line for _, line in lines], file, known)
    return [HistoryLine(where, split_ids(line, known)) for where, line in lines]


def _refuse_log(lines: Sequence[str], file: str, known: Callable[[str], bool]) -> None:
    """Refuse a header, and lines of equal length with a time, not an item, always in the same place."""
    wanted = "it is a log, not histories: give the items of one user a line, oldest first"
    names = [name.strip('" ') for name in re.split(r"[,;|\t ]", lines[0])]
    if any(looks_like("user", name) for name in names) and any(looks_like("item", name) for name in names):
        raise UserError(f"{file} starts with the header '{lines[0].strip()[:80]}': {wanted}")
    rows = [re.split(r"::|[,;|\s]+", line.strip()) for line in lines]
    if len(rows[0]) < 3 or any(len(row) != len(rows[0]) for row in rows):
        return
    for column in zip(*rows, strict=True):
        if all(_TIME.fullmatch(each) and not known(each) for each in column):
            raise UserError(f"{file} has a time in every line, such as {column[0]}: {wanted}")


def _from_json(where: str, line: str) -> HistoryLine:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error}); give a list of ids a line") from None
    ids, user = (value.get("history"), value.get("user")) if isinstance(value, dict) else (value, None)
    if not isinstance(ids, list):
        raise UserError(f'{where}: give a list of ids, such as ["12", "7"]')
    if user is not None and not isinstance(user, (str, int)):
        raise UserError(f"{where}: the user is {user!r}: give an id")
    return HistoryLine(where, ids, None if user is None else str(user))


def read_log(users: str, settings: Mapping[str, str | None], usual: Mapping[str, Any], context: Any) -> Interactions:
    """Read a log with the run's settings; `settings` replace these, and `null` removes one."""
    if is_prepared(local(users)):
        if (named := next((name for name in settings if settings[name]), None)) is not None:
            raise UserError(f"{users} is already prepared, so data.{named} cannot change: leave it out")
        return open_prepared(local(users))
    how: dict[str, Any] = {name: usual.get(name) if own is None else own for name, own in settings.items()}
    if usual.get("where") not in (None, how["where"]):
        print(f'data.where replaces the condition of the run, "{usual["where"]}"', file=sys.stderr)
    how = {name: None if value in ("null", "") else value for name, value in how.items()}
    how |= {"format": usual.get("format") or AUTO, "context": context}
    try:
        return read_interactions(users, **how)
    except UserError as error:
        ours = settings["where"] is None and str(error).startswith("data.where ")
        if not ours:
            raise
        raise UserError(f"{error}; that is the run's: --data.where null takes all rows") from None


# A table of answers, in the format that the ending of its file's name says.

_WRITERS: dict[str, Callable[[pl.DataFrame, Path], None]] = {
    ".parquet": lambda frame, path: frame.write_parquet(path),
    ".csv": lambda frame, path: frame.write_csv(path),
    ".tsv": lambda frame, path: frame.write_csv(path, separator="\t"),
    ".jsonl": lambda frame, path: frame.write_ndjson(path),
}


def file_for_answers(out: str | None, option: str) -> Path:
    """Return the file for an option's answers; refuse a name without a known format, or of an existing file."""
    kinds = ", ".join(_WRITERS)
    if out is None:
        raise UserError(f"{option} needs a file to write: add --out answers.parquet")
    path = Path(out)
    if path.suffix not in _WRITERS:
        raise UserError(f"--out {out}: the name says the format; give one that ends in {kinds}")
    if path.exists():
        raise UserError(f"--out {out} exists: give another name, or remove it")
    return path


def write_table(parts: Iterator[pl.DataFrame], path: Path) -> pl.DataFrame:
    """Write the rows of all parts and return them. Columns of lists are refused at the first part where text is."""
    found: list[pl.DataFrame] = []
    for part in parts:
        nested = [name for name, held in part.schema.items() if held.is_nested()]
        if nested and path.suffix in (".csv", ".tsv"):
            raise UserError(
                f"--keep {nested[0]} holds {part.schema[nested[0]]}, which {path.suffix} cannot: give --out .parquet "
                "or .jsonl"
            )
        found.append(part)
    frame = pl.concat(found, how="vertical_relaxed")  # a folder's parts may have numbers of several types
    replace_file(path, lambda temporary: _WRITERS[path.suffix](frame, temporary))
    return frame
