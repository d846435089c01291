"""A trained recommender as an object: `dprec.load(run).recommend(...)`, raw ids in and raw ids out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dprec.data.formats.columnar import as_polars
from dprec.data.formats.wanted import BY_ROW
from dprec.data.logs.context import ContextColumns
from dprec.data.logs.histories import Interactions
from dprec.data.logs.interactions import read_frame
from dprec.data.selection.catalogue import Catalogue
from dprec.errors import UserError
from dprec.models import Recommender
from dprec.run.saved.checkpoints import load_run
from dprec.serving.histories import History, example, unicode_texts
from dprec.serving.top_k import NONE, Question, Recommended, Scores, best

COLUMNS: dict[str, Any] = {
    "user": pl.String,
    "place": pl.List(pl.Int64),
    "item": pl.List(pl.String),
    "score": pl.List(pl.Float32),
    "source": pl.String,
}
ALIKE = 5_000  # ids that an unknown one is compared with


class Served:
    """A run that recommends. `dprec.load` makes it.

    Attributes:
        guarantee: the run's sentence.
        items: raw ids of all items that can be recommended.
    """

    def __init__(self, model: Recommender, catalogue: Catalogue, facts: Mapping[str, Any]) -> None:
        self.model = model
        self.catalogue = catalogue
        self.facts = facts
        self.context: dict[str, Any] | None = facts.get("context")  # as data.context names it
        self.context_columns = None if self.context is None else ContextColumns.of(self.context)

    @cached_property
    def scores(self) -> Scores:
        return Scores(self.model)

    @property
    def guarantee(self) -> str:
        return str(self.facts["guarantee"]["guarantee"])

    @property
    def items(self) -> list[str]:
        return list(self.catalogue.ids)

    @property
    def how_read(self) -> Mapping[str, Any]:
        """The settings by which the log of training was read."""
        return self.facts.get("prepared_as") or self.facts.get("data", {}).get("init_args") or {}

    def knows(self, raw: str) -> bool:
        return bool(self.catalogue.encode_history([raw])[0])

    def recommend(
        self, histories: Any, k: int = 10, exclude_seen: bool = True, items: Any = None, exclude: Any = None
    ) -> Any:
        """The k best next items for each history of raw item ids, oldest first.

        Histories are given as

        - a list of histories: a list of `Recommended` comes back, in the same order. For a run that reads context a
          history is a list of events, such as {"item": "12", "device": "tv"};
        - a mapping from a user's name to the history: a dict of `Recommended` by name;
        - a data frame of polars or pandas, a log as for training: one of the same library comes back, with the columns
          user, place (1 the best), item, score and source. Columns named as in training are found.

        Unknown ids are left out. Where none is known, and for an empty history, the answer is what most people choose
        as far as the model tells (`Recommender.without_history`); it never reads the training data.

        Args:
            histories: of raw item ids.
            k: how many items.
            exclude_seen: leave out the items of the history.
            items: the only items to choose from: ids for all histories, a list of lists with one for each, or a mapping
                from users to lists; None for all items. An id that the run does not know is refused.
            exclude: items to leave out, given likewise.
        """
        names, questions = self._read(histories)
        found = self.answer(self.choosing(questions, names, k, exclude_seen, items, exclude))
        if isinstance(histories, Mapping):
            return dict(zip(names, found, strict=True))
        return found if isinstance(histories, (list, tuple)) else as_given(table_of(names, found), histories)

    def answer(self, questions: Sequence[Question]) -> list[Recommended]:
        return best(questions, self.scores, self.catalogue, self.context_columns)

    def _read(self, histories: Any) -> tuple[Sequence[Any], list[Question]]:
        """Whose histories these are, or which, and what is asked for each."""
        if isinstance(histories, (str, bytes, Path)):
            raise UserError(
                f"histories are a {type(histories).__name__}: give a list of histories, a mapping of users to them or "
                f"a data frame; a history is {example(self.context_columns)}"
            )
        if not isinstance(histories, (Mapping, list, tuple)):
            frame = as_polars(histories)
            there = [*frame.collect_schema().names(), BY_ROW]
            roles = {role: self.how_read.get(role) for role in ("user_column", "item_column", "time_column")}
            own = {role: column for role, column in roles.items() if column in there}
            return self.of_log(read_frame(frame, context=self.context, **own))
        events = list(histories.values()) if isinstance(histories, Mapping) else histories
        read = [History.read(each, f"history {n}", self.context_columns) for n, each in enumerate(events)]
        return list(histories) if isinstance(histories, Mapping) else range(len(read)), self.ask(read)

    def ask(self, histories: Sequence[History]) -> list[Question]:
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
        if self.context_columns is not None:
            if log.context is None or log.context.columns.fingerprint != self.context_columns.fingerprint:
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
            raise UserError(f'{where} is no list of item ids: give one, such as ["12", "7"]')
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


def table_of(users: Sequence[str], found: Sequence[Recommended]) -> pl.DataFrame:
    """A row for each user and place: user, place, item, score, source."""
    frame = pl.DataFrame(
        {
            "user": users,
            "place": [list(range(1, len(one.items) + 1)) for one in found],
            "item": [one.items for one in found],
            "score": [one.scores for one in found],
            "source": [one.source for one in found],
        },
        schema=COLUMNS,
    )
    return frame.explode("place", "item", "score").drop_nulls("place")


def as_given(frame: pl.DataFrame, given: Any) -> Any:
    """The frame in the library of the one that was given."""
    if type(given).__module__.split(".")[0] != "pandas":
        return frame
    return type(given)(frame.to_dict(as_series=False))  # Python's values: polars' own conversion needs pyarrow


def load(run: Any, trust: Sequence[str] = ()) -> Served:
    """Return the trained run in a folder or a .ckpt file, ready to recommend; its data is not needed.

    The file cannot run code: classes from outside of dprec are imported only from the modules that you name in `trust`.
    The answer to each history has `items`, `scores`, `source` and `unknown` (see `Served.recommend`).

    Args:
        run: the folder of `dprec fit`, or a checkpoint that Lightning wrote of a recommender of dprec.
        trust: names of modules whose classes the run may use, such as `["my_model"]`.

    >>> import tempfile
    >>> import pytorch_lightning as pl
    >>> from dprec import GRU, Sequences, load
    >>> data = Sequences(dataset="synthetic", synthetic_users=60, synthetic_items=40, batch_size=10)
    >>> data.setup()
    >>> trainer = pl.Trainer(accelerator="cpu", max_steps=1, barebones=True)
    >>> trainer.fit(GRU(**data.sizes, dim=4), data)
    >>> file = f"{tempfile.mkdtemp()}/run.ckpt"
    >>> trainer.save_checkpoint(file)
    >>> served = load(file)
    >>> [answer] = served.recommend([served.items[:2]], k=3)
    >>> len(answer.items), answer.source, answer.unknown
    (3, 'history', [])
    """
    checkpoint, model = load_run(str(run), trust)
    if not isinstance(model, Recommender):
        raise UserError(f"{run} holds a {type(model).__name__}, which does not rank items: give a run of a recommender")
    ids = checkpoint["dprec"].get("catalogue")
    if ids is None and not checkpoint["dprec"]["data"]["class_path"]:  # of a loader of numbers
        ids = [str(item) for item in range(1, model.items)]
    if not isinstance(ids, list) or len(ids) != model.items - 1 or not all(isinstance(raw, str) for raw in ids):
        raise UserError(f"{run} does not name the {model.items - 1} items of its model: give another run")
    return Served(model, Catalogue(ids), checkpoint["dprec"])
