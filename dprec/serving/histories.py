"""Histories of raw ids, one a line, as a command reads them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dprec.data.formats.format import lines_in
from dprec.data.formats.wanted import looks_like
from dprec.errors import UserError

_TIME = re.compile(r"\d{9,19}(\.\d+)?|\d{4}-\d\d-\d\d\S*")  # seconds or finer units since 1970, or an ISO date


@dataclass(frozen=True)
class HistoryLine:
    """One line: raw item ids or events, oldest first, and whose they are if the line says so."""

    line: int
    history: list[Any]
    user: str | None = None


def split_ids(text: str) -> list[str]:
    """Ids separated by commas or white space.

    >>> split_ids("12, 7 95"), split_ids("")
    (['12', '7', '95'], [])
    """
    return text.replace(",", " ").split()


def read_histories(file: str, known: Callable[[str], bool]) -> Iterator[HistoryLine]:
    """One history a line: ids as in ``--history``, or in a .jsonl file a list of ids, or of events with their context.

    A JSON line may also be an object with a ``history`` and perhaps a ``user``, so the command can read its own output.
    `-` is standard input, whose first line shows whether it is JSON. A log, which has an event a line, is refused: its
    users and times would be taken for items. ``known`` says whether an id is an item.
    """
    path = Path(file)
    try:
        lines = lines_in(sys.stdin.read() if file == "-" else path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the histories in {file}: {error}") from None
    if not any(line.strip() for line in lines):
        raise UserError(f"{file} is empty: give one history a line")
    is_json = path.suffix in (".jsonl", ".json", ".ndjson")
    if file == "-":  # it has no name
        is_json = next(line for line in lines if line.strip()).lstrip().startswith(("[", "{"))
    if not is_json:
        _refuse_log([line for line in lines if line.strip()], file, known)
    read = (lambda line, n: _from_json(line, n, file)) if is_json else (lambda line, n: HistoryLine(n, split_ids(line)))
    # All lines are read before the first answer, so that a mistake in the last line shows at once.
    return iter([read(line, n) for n, line in enumerate(lines, 1) if line.strip()])


def _refuse_log(lines: Sequence[str], file: str, known: Callable[[str], bool]) -> None:
    """Refuse a header, and lines of equal length in which the same place always holds a time that is no item."""
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


def _from_json(line: str, number: int, file: str) -> HistoryLine:
    where = f"{file}, line {number}"
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error.msg}); give a list of ids a line") from None
    ids, user = (value.get("history"), value.get("user")) if isinstance(value, dict) else (value, None)
    if not isinstance(ids, list) or not all(type(raw) in (str, int, dict) for raw in ids):
        raise UserError(f'{where}: give a list of ids, such as ["12", "7"]')
    if user is not None and not isinstance(user, (str, int)):
        raise UserError(f"{where}: the user is {user!r}: give an id")
    return HistoryLine(
        number, [raw if isinstance(raw, dict) else str(raw) for raw in ids], None if user is None else str(user)
    )
