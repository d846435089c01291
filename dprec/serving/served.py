"""A trained run as an object that recommends: `dprec.load(run).recommend(...)`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from dprec.data.draws.batch import RankingBatch, RankingInContext
from dprec.data.logs.context import ContextColumns
from dprec.data.logs.histories import Interactions
from dprec.data.logs.interactions import read_frame
from dprec.data.selection.catalogue import Catalogue
from dprec.errors import UserError
from dprec.models import Recommender
from dprec.notices import paced
from dprec.run.saved.checkpoints import load_run
from dprec.serving.histories import History, example

HISTORY, POPULARITY = "history", "popularity"
NUMBERS = 2**23  # scores at a time: what a batch of users may have in memory
USERS = 512
COLUMNS: dict[str, Any] = {
    "user": pl.String,
    "place": pl.List(pl.Int64),
    "item": pl.List(pl.String),
    "score": pl.List(pl.Float32),
    "source": pl.String,
}


@dataclass(frozen=True)
class Recommended:
    """What one user is recommended, best first."""

    items: list[str]
    scores: list[float]  # logits, or of popularity the share of all choices: each list has one scale of its own
    source: str  # "history", or "popularity" where no item of the history is known
    unknown: list[str]  # ids of the history that the run does not know


class Scores(nn.Module):
    """Histories of item numbers (B, T), oldest first, zeros on the right, to scores of all items (B, items).

    A model that reads context takes its values (B, T, C), too, as a batch has them. `seen` holds whole histories, which
    may be longer than what the model reads. A history without an item gets popularity, and item 0, the padding, is
    never the best.
    """

    popularity: Tensor
    padding: Tensor

    def __init__(self, model: Recommender) -> None:
        super().__init__()
        self.model: Any = model.eval()
        with torch.inference_mode():
            popularity = model.without_history().float()
        self.register_buffer("popularity", popularity.clone())  # (items,)
        self.register_buffer("padding", torch.arange(model.items) == 0)

    def forward(self, history: Tensor, context: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        seen = history if seen is None else seen
        batch = RankingBatch(history, history[:, 0], seen)
        if context is not None:
            batch = RankingInContext(history, history[:, 0], seen, context)
        scores = self.model.scores(batch).float()
        known = (history != 0).any(1, keepdim=True)
        return torch.where(known, scores, self.popularity).masked_fill(self.padding, -torch.inf)


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
        codes = None
        if self.context_columns is not None:
            codes = [np.zeros(len(h.ids), dtype=np.int64) if h.codes is None else h.codes for h in histories]
        found = self._best(numbers, codes, k, exclude_seen)
        unknown = [[h.ids[place] for place in np.flatnonzero(n == 0)] for h, n in zip(histories, numbers, strict=True)]
        return [replace(one, unknown=ids) for one, ids in zip(found, unknown, strict=True)]

    def recommend_all(
        self,
        log: Interactions,
        k: int = 10,
        exclude_seen: bool = True,
    ) -> pl.DataFrame:
        """A row for each user of a log and each place: user, place, item, score, source."""
        numbers = np.array([self.catalogue.index(raw) or 0 for raw in log.item_ids], dtype=np.int64)
        items = numbers[log.item]
        spans = [slice(start, end) for start, end in zip(log.offsets[:-1], log.offsets[1:], strict=True)]
        codes = None
        if self.context_columns is not None:
            if log.context is None or log.context.columns.fingerprint != self.context_columns.fingerprint:
                raise UserError(
                    "the run reads the context of events, which this log was read without: give it the columns"
                )
            codes = [log.context.codes[span] for span in spans]
        found = self._best([items[span] for span in spans], codes, k, exclude_seen)
        frame = pl.DataFrame(
            {
                "user": log.ids_of(np.arange(len(found))),
                "place": [list(range(1, len(one.items) + 1)) for one in found],
                "item": [one.items for one in found],
                "score": [one.scores for one in found],
                "source": [one.source for one in found],
            },
            schema=COLUMNS,
        )
        return frame.explode("place", "item", "score").drop_nulls("place")

    def _best(
        self,
        numbers: Sequence[np.ndarray],
        codes: Sequence[np.ndarray] | None,
        k: int,
        exclude_seen: bool,
    ) -> list[Recommended]:
        """The best of each history of item numbers, 0 where unknown; `codes` are those of its events' context.

        Users of similar length go together, so that short histories are not padded to long ones.
        """
        found: dict[int, Recommended] = {}
        order = sorted(range(len(numbers)), key=lambda user: len(numbers[user]))
        size = min(USERS, max(1, NUMBERS // self.model.items))
        starts = range(0, len(order), size)
        for start in paced(starts, f"recommending: {size} users at a time, part", len(starts)):
            users = order[start : start + size]
            known = [numbers[user] > 0 for user in users]
            histories = [numbers[user][which] for user, which in zip(users, known, strict=True)]
            of_known = None
            if codes is not None:
                of_known = [codes[user][which] for user, which in zip(users, known, strict=True)]
            found |= zip(users, self._ranked(histories, of_known, k, exclude_seen), strict=True)
        return [found[user] for user in range(len(numbers))]

    @torch.inference_mode()
    def _ranked(
        self, histories: Sequence[np.ndarray], codes: Sequence[np.ndarray] | None, k: int, exclude_seen: bool
    ) -> Iterator[Recommended]:
        seen, recent, context = _padded(histories), self._recent(histories), None  # (B, S), (B, T)
        if codes is not None and self.context_columns is not None:
            context = torch.from_numpy(self.context_columns.values(self._recent(codes).numpy()))  # (B, T, C)
        scores = self.scores(recent, context, seen)
        if exclude_seen:
            scores.scatter_(1, seen, -torch.inf)
        best = scores.topk(min(k, self.model.items - 1))
        for history, values, items in zip(histories, best.values.tolist(), best.indices.tolist(), strict=True):
            left = [place for place, value in enumerate(values) if math.isfinite(value)]
            names = [self.catalogue.raw(items[place]) for place in left]
            source = HISTORY if len(history) else POPULARITY
            yield Recommended(names, [values[place] for place in left], source, [])

    def _recent(self, rows: Sequence[np.ndarray]) -> Tensor:
        return _padded([row[-self.model.max_length :] for row in rows])


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


def _padded(histories: Sequence[np.ndarray]) -> Tensor:
    """Histories (B, T) as long as the longest, at least 1, with zeros on the right."""
    rows = np.zeros((len(histories), max(1, *map(len, histories))), dtype=np.int64)
    for row, history in zip(rows, histories, strict=True):
        row[: len(history)] = history
    return torch.from_numpy(rows)
