"""Requests to a run that ranks, from Python, a command or HTTP: converts raw ids to item numbers."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dprec.data.formats.columnar import FRAME, as_polars
from dprec.data.formats.wanted import BY_ROW, Condition
from dprec.data.logs.context import ROLE, ContextColumns
from dprec.data.logs.histories import Interactions
from dprec.data.logs.interactions import read_frame
from dprec.data.selection.catalogue import Catalogue
from dprec.errors import UserError
from dprec.serving.features import ItemFeatures
from dprec.serving.top_k import NONE, Question

ALIKE = 5_000  # known ids that an unknown one is compared with
ITEM = "item"  # the key of an event's id, beside those of its context


@dataclass(frozen=True)
class Request:
    """The arguments of `Served.recommend`, with the same names in HTTP bodies and in the command's options.

    Args:
        histories: a list of histories, a mapping from names to them, a data frame or a log.
        k: how many items.
        exclude_seen: leave out the items of the history.
        items: the only items to choose from: ids for all histories, a list of lists with one for each, or a mapping
            from names to lists; None for all items.
        exclude: items to leave out, in the same forms.
        only: values of the items' features, such as {"genre": "Comedy"}: recommend only items that have one of them
            in each column.
    """

    histories: Any
    k: int = 10
    exclude_seen: bool = True
    items: Any = None
    exclude: Any = None
    only: Any = None


class RequestReader:
    """Reads requests. No error message contains an id or a value of a history.

    Args:
        catalogue: the items that the run knows.
        context: as in data.context; None if the run reads none.
        how_read: the settings with which the training log was read.
        features: the items' features, if requests may name them.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        context: Mapping[str, Any] | None,
        how_read: Mapping[str, Any],
        features: ItemFeatures | None = None,
    ) -> None:
        self.catalogue, self.context, self.how_read, self.features = catalogue, context, how_read, features
        self.columns = None if context is None else ContextColumns.of(context)

    def read(self, request: Request) -> tuple[Sequence[Any], list[Question]]:
        """Return the histories' names or places, and the question for each."""
        refuse_k(request.k)
        if not isinstance(request.exclude_seen, bool):
            raise UserError("exclude_seen must be true or false")
        names, histories = self._histories(request.histories)
        items, exclude = self._each(request.items, names, "items"), self._each(request.exclude, names, "exclude")
        if request.only is not None:
            if self.features is None:
                raise UserError("only needs the items' features: give a CSV file as features, with a column item")
            few = self.features.numbers(request.only)
            items = [few if among is None else np.intersect1d(among, few) for among in items]
        return names, [
            Question(*known, request.k, request.exclude_seen, among, NONE if without is None else without)
            for known, among, without in zip(histories, items, exclude, strict=True)
        ]

    def _histories(self, given: Any) -> tuple[Sequence[Any], list[Known]]:
        if isinstance(given, (str, bytes, Path)):
            raise UserError(
                f"histories are a {type(given).__name__}: give a list of histories, a mapping of users to them or "
                f"a data frame; a history is {example(self.columns)}"
            )
        if isinstance(given, Interactions):
            return self._of_log(given)
        if isinstance(given, (Mapping, list, tuple)):
            names, each = (list(given), given.values()) if isinstance(given, Mapping) else (range(len(given)), given)
            told = map(str, names) if isinstance(given, Mapping) else (f"history {n}" for n in names)
            read = [history_of(*one, self.columns) for one in zip(each, told, strict=True)]
            numbers = self.catalogue.numbers([ids for ids, _ in read])
            return names, [_known(np.array(own, np.int64), *one) for own, one in zip(numbers, read, strict=True)]
        frame = as_polars(given)
        there, where = [*frame.collect_schema().names(), BY_ROW], self.how_read.get("where")
        roles = {role: self.how_read.get(role) for role in ("user_column", "item_column", "time_column")}
        own = {role: column for role, column in roles.items() if column in there}
        if isinstance(where, str):
            with suppress(UserError):  # the frame lacks these columns
                own["where"] = Condition.read(where, FRAME, there, dict).text
        return self._of_log(read_frame(frame, context=self.context, **own))

    def _of_log(self, log: Interactions) -> tuple[list[str], list[Known]]:
        items, codes = np.array(self.catalogue.numbers([log.item_ids])[0], dtype=np.int64)[log.item], None
        if self.columns is not None:
            if log.context is None or log.context.columns.fingerprint != self.columns.fingerprint:
                raise UserError(
                    "the run reads the context of events, which this log was read without: give it the columns"
                )
            codes = log.context.codes
        each = [slice(*ends) for ends in zip(log.offsets[:-1], log.offsets[1:], strict=True)]
        found = [_known(items[own], None, None if codes is None else codes[own]) for own in each]
        return log.ids_of(np.arange(len(found))), found

    def _each(self, given: Any, names: Sequence[Any], where: str) -> list[np.ndarray | None]:
        """Return items for each name, from ids for all, a list for each, or a mapping of some to lists."""
        if isinstance(given, Mapping):
            known = set(names)
            if strange := [name for name in given if name not in known]:
                close = meant(str(strange[0]), map(str, names))
                raise UserError(f"{where} names {strange[0]!r}, whose history is not given{close}")
            lists = [given.get(name) for name in names]
        else:
            given = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else given
            if not isinstance(given, list) or not any(isinstance(one, (list, tuple, np.ndarray)) for one in given):
                return [None if given is None else self.numbers(given, where)] * len(names)
            if len(given) != len(names):
                raise UserError(f"{where} has {len(given)} lists for {len(names)} histories: give one for each")
            lists = given
        told = [f"{where} of {name}" for name in names]
        return [None if ids is None else self.numbers(ids, own) for ids, own in zip(lists, told, strict=True)]

    def numbers(self, ids: Any, where: str) -> np.ndarray:
        """Return the numbers of items (n,); the run must know all of them."""
        if not _is_list(ids):
            raise UserError(f'{where} must be a list of item ids: give one, such as ["12", "7"]')
        raw = texts_of(list(ids), where)
        found = np.array(self.catalogue.numbers([raw])[0], dtype=np.int64)
        if len(strange := np.flatnonzero(found == 0)):
            close = meant(raw[strange[0]], self.catalogue.ids)
            first, count = strange[0] + 1, f"{len(strange):,} of {len(raw):,} ids are"
            said = f"{count} unknown to the run, the first is number {first}" if len(strange) > 1 else None
            raise UserError(f"{where}: {said or f'id number {first} is unknown to the run'}{close}")
        return found


Known = tuple[np.ndarray, "np.ndarray | None", list[str]]  # the first three fields of a `Question`


def _known(numbers: np.ndarray, ids: Sequence[str] | None, codes: np.ndarray | None) -> Known:
    """Return a history's known items (unknown ones are 0 in `numbers`), their context, and the unknown ids."""
    known = numbers > 0
    unknown = [] if ids is None else [raw for raw, there in zip(ids, known, strict=True) if not there]
    return numbers[known], None if codes is None else codes[known], unknown


def refuse_k(k: Any) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UserError(f"k is {k!r:.20}: give a whole number of at least 1")


def meant(name: str, known: Iterable[str]) -> str:
    """Return a "did you mean" hint if a known id is close; of very many ids, not all are tried.

    >>> meant("alein", ["alien", "brazil"]), meant("x", ["alien"])
    ('; did you mean alien?', '')
    """
    several = list(known)
    if len(several) > ALIKE:
        several = list(islice((one for one in several if one[:2] == name[:2]), ALIKE))
    close = difflib.get_close_matches(name, several, n=1)
    return f"; did you mean {close[0]}?" if close else ""


# One history: item ids, or events with their context.


def history_of(events: Any, where: str, columns: ContextColumns | None) -> tuple[list[str], np.ndarray | None]:
    """Return raw ids, oldest first; for a run that reads context, also each event's code (`ContextColumns.read`).

    >>> history_of(["12", 7], "the history", None)
    (['12', '7'], None)
    >>> columns = ContextColumns.of({"device": 5, "hour": [6, 12]})
    >>> events = [{"item": "12", "device": "tv", "hour": 13}, {"item": 7}]
    >>> ids, codes = history_of(events, "the history", columns)
    >>> ids, columns.values(codes)[:, 1].tolist()
    (['12', '7'], [3, 0])
    """
    if not _is_list(events):
        raise UserError(f"{where} is no list: give {example(columns)}")
    told = list(events)
    if columns is None:
        if any(isinstance(event, Mapping) for event in told):
            raise UserError(f"{where} has events with context, which the run does not read: give {example(None)}")
        return texts_of(told, where), None
    for number, event in enumerate(told, 1):
        if not isinstance(event, Mapping) or ITEM not in event:
            raise UserError(f"{where}, event {number} is no object with an item: give {example(columns)}")
        if strange := [name for name in event if name != ITEM and name not in columns.rows]:
            raise UserError(
                f"{where}, event {number} has {len(strange)} keys that the run does not read: it reads "
                f"{', '.join([ITEM, *columns.rows])}"
            )
    batch: dict[str, pl.Series] = {"row": pl.Series(range(len(told)), dtype=pl.Int64)}
    for name, kind in columns.columns.items():
        texts = [text_of(event.get(name), name, f"{where}, event {number}") for number, event in enumerate(told, 1)]
        batch[f"{ROLE}{name}"] = pl.Series(texts, dtype=pl.String)
        if isinstance(kind, tuple):
            _refuse_words(batch[f"{ROLE}{name}"], name, where)
    return texts_of([event[ITEM] for event in told], where), columns.read(pl.DataFrame(batch), Path(where))


def example(columns: ContextColumns | None) -> str:
    """Return an example of a history, for messages."""
    if columns is None:
        return 'item ids, oldest first, such as ["12", "7"]'
    known = "".join(f', "{name}": {value}' for name, value in columns.examples.items())
    return f'events, oldest first, such as [{{"{ITEM}": "12"{known}}}]; what is not known of an event may be left out'


def _is_list(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, (str, bytes, Mapping))


def texts_of(ids: Sequence[Any], where: str) -> list[str]:
    """Return ids as texts, as in a log."""
    if not all(_is_id(raw) for raw in ids):
        raise UserError(f"{where} has an id that is neither a text nor a number: give texts or whole numbers")
    texts = [str(raw) for raw in ids]
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise UserError(f"{where} has an id that is no text of Unicode: give it in UTF-8") from None
    return texts


def _is_id(raw: Any) -> bool:
    if isinstance(raw, float):
        return math.isfinite(raw)
    return raw is not None and not isinstance(raw, (bool, list, tuple, Mapping))


def text_of(value: Any, name: str, where: str) -> str | None:
    """Return a value as text, as in a log; None if it is missing."""
    if value is None or value != value:  # NaN, which pandas has for a missing value
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, (str, int, float, np.number)):
        raise UserError(f"{where}: '{name}' is a {type(value).__name__}: give a text, a number or nothing")
    (text,) = texts_of([value], where)
    return text


def _refuse_words(texts: pl.Series, name: str, where: str) -> None:
    text = texts.str.strip_chars()
    words = text.cast(pl.Float64, strict=False).is_null() & text.is_not_null() & (text != "")
    if words.any():
        number = (words.arg_max() or 0) + 1
        raise UserError(f"{where}, event {number}: '{name}' is no number: give one, or leave it out")
