"""Histories that somebody asks about: raw ids, or events with what is known of each, alone or one a line of a file."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dprec.data.formats.format import lines_in
from dprec.data.formats.wanted import looks_like
from dprec.data.logs.context import ROLE, ContextColumns
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


ITEM = "item"  # the name of an event's id, beside those of its context


@dataclass(frozen=True)
class History:
    """Raw ids of items, oldest first; of a run that reads context the code of each event's, too.

    >>> History.read(["12", 7], "the history").ids
    ['12', '7']
    >>> columns = ContextColumns.of({"device": 5, "hour": [6, 12]})
    >>> seen = History.read([{"item": "12", "device": "tv", "hour": 13}, {"item": 7}], "the history", columns)
    >>> seen.ids, columns.values(seen.codes)[:, 1].tolist()
    (['12', '7'], [3, 0])
    """

    ids: list[str]
    codes: np.ndarray | None = None  # as `ContextColumns.read` gives them; None where nothing is known of any event

    @classmethod
    def read(cls, events: Any, where: str, columns: ContextColumns | None = None) -> History:
        """From ids, or for a run that reads context from objects with an item and what is known of the event.

        No message repeats an id or a value.
        """
        if isinstance(events, (str, bytes, Mapping)) or not isinstance(events, Iterable):
            raise UserError(f"{where} is no list: give {example(columns)}")
        told = list(events)
        if columns is None:
            if any(isinstance(event, Mapping) for event in told):
                raise UserError(f"{where} has events with context, which the run does not read: give {example(None)}")
            return cls(unicode_texts(told, where))
        for number, event in enumerate(told, 1):
            if not isinstance(event, Mapping) or ITEM not in event:
                raise UserError(f"{where}, event {number} is no object with an item: give {example(columns)}")
            if strange := [name for name in event if name != ITEM and name not in columns.rows]:
                raise UserError(
                    f"{where}, event {number} has {len(strange)} keys that the run does not read: it reads "
                    f"{', '.join([ITEM, *columns.rows])}"
                )
        return cls(unicode_texts([event[ITEM] for event in told], where), _codes(told, where, columns))


def example(columns: ContextColumns | None) -> str:
    """What a history looks like, for messages."""
    if columns is None:
        return 'item ids, oldest first, such as ["12", "7"]'
    known = "".join(f', "{name}": {value}' for name, value in columns.examples.items())
    return f'events, oldest first, such as [{{"{ITEM}": "12"{known}}}]; what is not known of an event may be left out'


def unicode_texts(ids: Sequence[Any], where: str) -> list[str]:
    texts = [str(raw) for raw in ids]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where} has an id that is no text of Unicode: give it in UTF-8") from None
    return texts


def _codes(events: Sequence[Mapping[str, Any]], where: str, columns: ContextColumns) -> np.ndarray:
    batch: dict[str, pl.Series] = {"row": pl.Series(range(len(events)), dtype=pl.Int64)}
    for name, kind in columns.columns.items():
        texts = [text_of(event.get(name), name, f"{where}, event {number}") for number, event in enumerate(events, 1)]
        if isinstance(kind, tuple):
            _refuse_words(texts, name, where)
        batch[f"{ROLE}{name}"] = pl.Series(texts, dtype=pl.String)
    return columns.read(pl.DataFrame(batch), Path(where))


def text_of(value: Any, name: str, where: str) -> str | None:
    """A value as a log of the same values has it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float, np.number)):
        raise UserError(f"{where}: '{name}' is a {type(value).__name__}: give a text, a number or nothing")
    (text,) = unicode_texts([value], where)
    return text


def _refuse_words(texts: Sequence[str | None], name: str, where: str) -> None:
    text = pl.Series(texts, dtype=pl.String).str.strip_chars()
    words = text.cast(pl.Float64, strict=False).is_null() & text.is_not_null() & (text != "")
    if words.any():
        number = (words.arg_max() or 0) + 1
        raise UserError(f"{where}, event {number}: '{name}' is no number: give one, or leave it out")
