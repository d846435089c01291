"""A history that somebody asks about: raw ids, or events with what is known of each beside its item."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dprec.data.logs.context import ROLE, ContextColumns
from dprec.errors import UserError

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
            return cls(_texts(told, where))
        for number, event in enumerate(told, 1):
            if not isinstance(event, Mapping) or ITEM not in event:
                raise UserError(f"{where}, event {number} is no object with an item: give {example(columns)}")
            if strange := [name for name in event if name != ITEM and name not in columns.rows]:
                raise UserError(
                    f"{where}, event {number} has {len(strange)} keys that the run does not read: it reads "
                    f"{', '.join([ITEM, *columns.rows])}"
                )
        return cls(_texts([event[ITEM] for event in told], where), _codes(told, where, columns))


def example(columns: ContextColumns | None) -> str:
    """What a history looks like, for messages."""
    if columns is None:
        return 'item ids, oldest first, such as ["12", "7"]'
    known = "".join(f', "{name}": {value}' for name, value in columns.examples.items())
    return f'events, oldest first, such as [{{"{ITEM}": "12"{known}}}]; what is not known of an event may be left out'


def _texts(ids: Sequence[Any], where: str) -> list[str]:
    texts = [str(raw) for raw in ids]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where} has an id that is no text of Unicode: give it in UTF-8") from None
    return texts


def _codes(events: Sequence[Mapping[str, Any]], where: str, columns: ContextColumns) -> np.ndarray:
    batch: dict[str, pl.Series] = {"row": pl.Series(range(len(events)), dtype=pl.Int64)}
    for name, kind in columns.columns.items():
        texts = [_text(event.get(name), name, f"{where}, event {number}") for number, event in enumerate(events, 1)]
        if isinstance(kind, tuple):
            _refuse_words(texts, name, where)
        batch[f"{ROLE}{name}"] = pl.Series(texts, dtype=pl.String)
    return columns.read(pl.DataFrame(batch), Path(where))


def _text(value: Any, name: str, where: str) -> str | None:
    """A value as a log of the same values has it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float, np.number)):
        raise UserError(f"{where}: '{name}' is a {type(value).__name__}: give a text, a number or nothing")
    (text,) = _texts([value], where)
    return text


def _refuse_words(texts: Sequence[str | None], name: str, where: str) -> None:
    text = pl.Series(texts, dtype=pl.String).str.strip_chars()
    words = text.cast(pl.Float64, strict=False).is_null() & text.is_not_null() & (text != "")
    if words.any():
        number = (words.arg_max() or 0) + 1
        raise UserError(f"{where}, event {number}: '{name}' is no number: give one, or leave it out")
