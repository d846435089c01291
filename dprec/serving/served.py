"""A trained run as an object that recommends: `dprec.load(run).recommend(...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dprec.data.logs.context import ContextColumns
from dprec.data.logs.histories import Interactions
from dprec.data.logs.interactions import read_frame
from dprec.data.selection.catalogue import Catalogue
from dprec.errors import UserError
from dprec.models import Recommender
from dprec.run.saved.checkpoints import load_run
from dprec.serving.histories import History, example
from dprec.serving.ranker import Best, Ranker

HISTORY, POPULARITY = "history", "popularity"


@dataclass(frozen=True)
class Recommended:
    """What one user is recommended, best first."""

    items: list[str]
    scores: list[float]  # logits, or of popularity the share of all choices: each list has one scale of its own
    source: str  # "history", or "popularity" where no item of the history is known
    unknown: list[str]  # ids of the history that the run does not know

    @classmethod
    def of(cls, best: Best, catalogue: Catalogue, unknown: list[str]) -> Recommended:
        source = POPULARITY if best.by_popularity else HISTORY
        return cls([catalogue.raw(item) for item in best.items.tolist()], best.scores.tolist(), source, unknown)


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
        self._ranker = Ranker(model, self.context_columns)

    @property
    def guarantee(self) -> str:
        return str(self.facts["guarantee"]["guarantee"])

    @property
    def items(self) -> list[str]:
        return list(self.catalogue.ids)

    def knows(self, raw: str) -> bool:
        return bool(self.catalogue.encode_history([raw])[0])

    def recommend(self, histories: Any, k: int = 10, exclude_seen: bool = True) -> Any:
        """The k best next items for each history of raw item ids, oldest first.

        Histories are given as

        - a list of histories: a list of `Recommended` comes back, in the same order. For a run that reads context a
          history is a list of events, such as {"item": "12", "device": "tv"};
        - a mapping from a user's name to the history: a dict of `Recommended` by name;
        - a data frame of polars or pandas, a log as for training: one of the same library comes back, with the columns
          user, place (1 the best), item, score and source.

        Unknown ids are left out. Where none is known, and for an empty history, the answer is what most people choose
        as far as the model tells (`Recommender.without_history`); it never reads the training data.
        """
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise UserError(f"k is {k!r}: give a whole number of at least 1")
        if isinstance(histories, Mapping):
            return dict(zip(histories, self._lists(list(histories.values()), k, exclude_seen), strict=True))
        if isinstance(histories, (list, tuple)):
            return self._lists(histories, k, exclude_seen)
        if isinstance(histories, (str, bytes, Path)):
            raise UserError(
                f"histories are a {type(histories).__name__}: give a list of histories, a mapping of users to them or "
                f"a data frame; a history is {example(self.context_columns)}"
            )
        frame = self.recommend_all(read_frame(histories, context=self.context), k, exclude_seen)
        if type(histories).__module__.split(".")[0] != "pandas":
            return frame
        # As columns of Python's values, because polars' own conversion needs pyarrow.
        return type(histories)(frame.to_dict(as_series=False))

    def _lists(self, histories: Sequence[Any], k: int, exclude_seen: bool) -> list[Recommended]:
        read = [History.read(history, f"history {n}", self.context_columns) for n, history in enumerate(histories)]
        return self.recommend_after(read, k, exclude_seen)

    def recommend_after(self, histories: Sequence[History], k: int, exclude_seen: bool = True) -> list[Recommended]:
        """The same for histories that were read."""
        numbers = [np.array(items, dtype=np.int64) for items in self.catalogue.numbers([h.ids for h in histories])]
        known = [items[items > 0] for items in numbers]
        codes = None
        if self.context_columns is not None:
            of_all = [np.zeros(len(h.ids), dtype=np.int64) if h.codes is None else h.codes for h in histories]
            codes = [code[items > 0] for code, items in zip(of_all, numbers, strict=True)]
        found = self._ranker.best(known, k, exclude_seen, codes=codes)
        unknown = [[h.ids[place] for place in np.flatnonzero(n == 0)] for h, n in zip(histories, numbers, strict=True)]
        return [Recommended.of(best, self.catalogue, ids) for best, ids in zip(found, unknown, strict=True)]

    def recommend_all(
        self,
        log: Interactions,
        k: int = 10,
        exclude_seen: bool = True,
        advance: Callable[[int], object] = lambda _: None,
    ) -> pl.DataFrame:
        """A row for each user of a log and each place: user, place, item, score, source."""
        numbers = np.array([self.catalogue.index(raw) or 0 for raw in log.item_ids], dtype=np.int64)
        items = numbers[log.item]
        spans = [slice(start, end) for start, end in zip(log.offsets[:-1], log.offsets[1:], strict=True)]
        histories = [items[span][items[span] > 0] for span in spans]
        found = self._ranker.best(histories, k, exclude_seen, advance, self._codes(log, items, spans))
        raw = np.array(["", *self.catalogue.ids], dtype=object)
        sizes = np.array([len(best.items) for best in found])
        users = pl.Series("user", log.ids_of(np.arange(len(found))), dtype=pl.String)
        sources = np.array([POPULARITY if best.by_popularity else HISTORY for best in found], dtype=object)
        return pl.DataFrame(
            {
                "user": users.gather(np.repeat(np.arange(len(found)), sizes)),
                "place": np.concatenate([np.arange(1, size + 1) for size in sizes]),
                "item": pl.Series(_joined([raw[best.items] for best in found]), dtype=pl.String),
                "score": np.concatenate([best.scores for best in found]),
                "source": pl.Series(np.repeat(sources, sizes).tolist(), dtype=pl.String),
            }
        )

    def _codes(self, log: Interactions, items: np.ndarray, spans: Sequence[slice]) -> list[np.ndarray] | None:
        """Those of the context of each history's known items (n,)."""
        if self.context_columns is None:
            return None
        if log.context is None or log.context.columns.fingerprint != self.context_columns.fingerprint:
            raise UserError("the run reads the context of events, which this log was read without: give it the columns")
        return [log.context.codes[span][items[span] > 0] for span in spans]


def load(run: Any, trust: Sequence[str] = ()) -> Served:
    """The trained run in a folder or a .ckpt file, ready to recommend; its data is not needed.

    The file cannot run code: classes from outside of dprec are only imported from modules named in `trust`.
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


def _joined(parts: Sequence[np.ndarray]) -> list[str]:
    return [raw for part in parts for raw in part]
