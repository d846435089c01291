"""What is asked of a run that recommends: from raw ids to numbers of items, for lists, mappings and data frames."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dprec.data.formats.columnar import as_polars
from dprec.data.formats.wanted import BY_ROW
from dprec.data.logs.context import ContextColumns
from dprec.data.logs.histories import Interactions
from dprec.data.logs.interactions import read_frame
from dprec.data.selection.catalogue import Catalogue
from dprec.errors import UserError
from dprec.serving.histories import History, example, unicode_texts
from dprec.serving.top_k import NONE, Question

ALIKE = 5_000  # ids that an unknown one is compared with


class QuestionReader:
    """Reads histories and items in raw ids.

    Args:
        catalogue: the items that the run knows.
        context: as data.context names it; None where the run reads none.
        how_read: the settings by which the log of training was read.
    """

    def __init__(self, catalogue: Catalogue, context: Mapping[str, Any] | None, how_read: Mapping[str, Any]) -> None:
        self.catalogue, self.context, self.how_read = catalogue, context, how_read
        self.columns = None if context is None else ContextColumns.of(context)

    def read(self, histories: Any) -> tuple[Sequence[Any], list[Question]]:
        """Whose histories these are, or which, and what is asked for each."""
        if isinstance(histories, (str, bytes, Path)):
            raise UserError(
                f"histories are a {type(histories).__name__}: give a list of histories, a mapping of users to them or "
                f"a data frame; a history is {example(self.columns)}"
            )
        if not isinstance(histories, (Mapping, list, tuple)):
            frame = as_polars(histories)
            there = [*frame.collect_schema().names(), BY_ROW]
            roles = {role: self.how_read.get(role) for role in ("user_column", "item_column", "time_column")}
            own = {role: column for role, column in roles.items() if column in there}
            return self.of_log(read_frame(frame, context=self.context, **own))
        events = list(histories.values()) if isinstance(histories, Mapping) else histories
        read = [History.read(each, f"history {n}", self.columns) for n, each in enumerate(events)]
        return list(histories) if isinstance(histories, Mapping) else range(len(read)), self.after(read)

    def after(self, histories: Sequence[History]) -> list[Question]:
        """What is asked after histories, in numbers."""
        found = []
        for history, items in zip(histories, self.catalogue.numbers([each.ids for each in histories]), strict=True):
            known = np.array(items, dtype=np.int64)
            codes = None if history.codes is None else history.codes[known > 0]
            unknown = [history.ids[place] for place in np.flatnonzero(known == 0)]
            found.append(Question(known[known > 0], codes, unknown))
        return found

    def of_log(self, log: Interactions) -> tuple[list[str], list[Question]]:
        """The users of a log, and what is asked for each."""
        numbers = np.array([self.catalogue.index(raw) or 0 for raw in log.item_ids], dtype=np.int64)
        items, codes = numbers[log.item], None
        if self.columns is not None:
            if log.context is None or log.context.columns.fingerprint != self.columns.fingerprint:
                raise UserError(
                    "the run reads the context of events, which this log was read without: give it the columns"
                )
            codes = log.context.codes
        found = []
        for start, end in zip(log.offsets[:-1], log.offsets[1:], strict=True):
            known = items[start:end] > 0
            own = None if codes is None else codes[start:end][known]
            found.append(Question(items[start:end][known], own))
        return log.ids_of(np.arange(len(found))), found

    def choosing(
        self,
        questions: Sequence[Question],
        names: Sequence[Any],
        k: int = 10,
        exclude_seen: bool = True,
        items: Any = None,
        exclude: Any = None,
    ) -> list[Question]:
        """The same questions with these choices, as `recommend` takes them."""
        refuse_k(k)
        only, without = self._each(items, names, "items"), self._each(exclude, names, "exclude")
        return [
            replace(one, k=k, exclude_seen=exclude_seen, items=among, exclude=NONE if others is None else others)
            for one, among, others in zip(questions, only, without, strict=True)
        ]

    def _each(self, given: Any, names: Sequence[Any], where: str) -> list[np.ndarray | None]:
        """Items for each name, from ids for all, a list for each, or a mapping of some to lists."""
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
        """The numbers of items (n,), all of which the run must know. No message repeats an id."""
        if isinstance(ids, (str, bytes, Mapping)) or not isinstance(ids, Iterable):
            raise UserError(f'{where} must be a list of item ids: give one, such as ["12", "7"]')
        raw = unicode_texts(list(ids), where)
        found = np.array(self.catalogue.numbers([raw])[0], dtype=np.int64)
        if len(strange := np.flatnonzero(found == 0)):
            close = meant(raw[strange[0]], self.catalogue.ids)
            first, count = strange[0] + 1, f"{len(strange):,} of {len(raw):,} ids are"
            said = f"{count} unknown to the run, the first is number {first}" if len(strange) > 1 else None
            raise UserError(f"{where}: {said or f'id number {first} is unknown to the run'}{close}")
        return found


def refuse_k(k: Any) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UserError(f"k is {k!r}: give a whole number of at least 1")


def meant(name: str, known: Iterable[str]) -> str:
    """Say which of the known ids another one may have been meant for, if one is close; of very many, not all are tried.

    >>> meant("alein", ["alien", "brazil"]), meant("x", ["alien"])
    ('; did you mean alien?', '')
    """
    several = list(known)
    if len(several) > ALIKE:
        several = list(islice((one for one in several if one[:2] == name[:2]), ALIKE))
    close = difflib.get_close_matches(name, several, n=1)
    return f"; did you mean {close[0]}?" if close else ""
