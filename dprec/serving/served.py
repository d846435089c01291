"""A trained recommender as an object: `dprec.load(run).recommend(...)`, raw ids in and raw ids out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import polars as pl
import torch
from torch import Tensor

from dprec.data.formats.columnar import as_given
from dprec.data.selection.catalogue import Catalogue
from dprec.errors import UserError
from dprec.models import Recommender
from dprec.notices import say
from dprec.run.saved.checkpoints import load_run
from dprec.serving.features import ItemFeatures
from dprec.serving.predictions import ClickRun, TextRun, predicting
from dprec.serving.requests import Request, RequestReader, refuse_k
from dprec.serving.top_k import (
    NUMBERS,
    Question,
    Ranked,
    Recommended,
    Scores,
    as_batch,
    best,
    in_batches,
    list_best,
)

COLUMNS: dict[str, Any] = {
    "user": pl.String,
    "item": pl.List(pl.String),
    "score": pl.List(pl.Float32),
    "source": pl.String,
}
RANKS = "does not rank items: give a run of a recommender"
SOME = 5  # histories of one item with which scores are compared with products


class Vectors(NamedTuple):
    """The id of each row of `vectors` (n, d) float32, and the rows."""

    ids: list[Any]
    vectors: np.ndarray


class Served:
    """A run that recommends. `dprec.load` makes it.

    Attributes:
        guarantee: the run's sentence.
        items: raw ids of all items that can be recommended.
    """

    def __init__(
        self, model: Recommender, catalogue: Catalogue, facts: Mapping[str, Any], features: str | None = None
    ) -> None:
        self.model = model
        self.catalogue = catalogue
        self.facts = facts
        how_read = facts.get("prepared_as") or facts.get("data", {}).get("init_args") or {}
        known = None if features is None else ItemFeatures(features, catalogue)
        self.reader = RequestReader(catalogue, facts.get("context"), how_read, known)

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

    def recommend(
        self,
        histories: Any,
        k: int = 10,
        exclude_seen: bool = True,
        items: Any = None,
        exclude: Any = None,
        only: Any = None,
    ) -> Any:
        """Return the k best next items for each history of raw item ids, oldest first.

        Histories are given as

        - a list of histories: returns a list of `Recommended`, in the same order. For a run that reads context a
          history is a list of events, such as {"item": "12", "device": "tv"};
        - a mapping from a user's name to the history: returns a dict of `Recommended` by name;
        - a data frame of polars or pandas, a log as for training: returns one of the same library, with the columns
          user, place (1 the best), item, score and source. Columns named as in training are found.

        Unknown ids are left out. For an empty history, or one without known ids, the answer is the items that the model
        estimates to be most popular (`Recommender.without_history`); it never reads the training data.

        Args:
            histories: of raw item ids.
            k: how many items.
            exclude_seen: leave out the items of the history.
            items: the only items to choose from: ids for all histories, a list of lists with one for each, or a mapping
                from users to lists; None for all items. An id that the run does not know is refused.
            exclude: items to leave out, in the same forms.
            only: values of the features of `load`, such as {"genre": ["Comedy", "Drama"], "decade": "1990"}: only
                items that have one of them in each column.
        """
        names, questions = self.reader.read(Request(histories, k, exclude_seen, items, exclude, only))
        found = self.answer(questions)
        if isinstance(histories, Mapping):
            return dict(zip(names, found, strict=True))
        return found if isinstance(histories, (list, tuple)) else as_given(table_of(names, found), histories)

    def answer(self, questions: Sequence[Question]) -> list[Recommended]:
        return best(questions, self.scores, self.catalogue, self.reader.columns)

    @torch.inference_mode()
    def similar(self, items: Any, k: int = 10) -> list[Ranked]:
        """Return the k items most similar to each of `items`, by the cosine of their vectors.

        The vectors are those of `item_vectors`, without the coordinates of popularity.
        """
        refuse_k(k)
        asked, found = torch.from_numpy(self.reader.numbers(items, "items")), []
        vectors, lengths = self._directions
        if (without := lengths[asked] == 0).any():
            raise UserError(f"items: the model has no vector of id number {int(without.float().argmax()) + 1}")
        for some in asked.split(max(1, NUMBERS // len(vectors))):
            cosines = vectors[some] @ vectors.T / lengths[some, None] / lengths
            cosines.masked_fill_(lengths == 0, -torch.inf).scatter_(1, some[:, None], -torch.inf)
            found += list_best(cosines, [k] * len(some), self.catalogue)
        return found

    def item_vectors(self) -> Vectors:
        """The items' ids and vectors, whose products with `user_vectors` are the scores, or a part of them."""
        return Vectors(self.items, self._factors[1:].numpy().copy())

    @torch.inference_mode()
    def user_vectors(self, histories: Any) -> Vectors:
        """Return the ids and vectors of histories, given as for `recommend`.

        A history without a known item has no vector and is left out. The ids are names, users of a data frame, or
        places in a list. If a model adds more to its scores than the product, a notice is printed.
        """
        names, questions = self.reader.read(Request(histories))
        there = [place for place, one in enumerate(questions) if len(one.history)]
        found = np.zeros((len(there), self._factors.shape[1]), dtype=np.float32)
        for places, batch in in_batches([questions[place] for place in there], self.model, self.reader.columns):
            found[places] = self.model.user_vectors(batch).float().numpy()
        return Vectors([names[place] for place in there], found)

    @cached_property
    @torch.inference_mode()
    def _vectors(self) -> Tensor:
        """The items' vectors (items, d)."""
        return self.model.item_vectors().detach().float()

    @cached_property
    @torch.inference_mode()
    def _directions(self) -> tuple[Tensor, Tensor]:
        """The items' vectors without the coordinates of popularity, and their lengths (items,), 0 for the padding."""
        vectors = self._vectors[:, : self._vectors.shape[1] - self.model.popularity_columns]
        lengths = vectors.norm(dim=1)
        lengths[0] = 0.0
        return vectors, lengths

    @cached_property
    @torch.inference_mode()
    def _factors(self) -> Tensor:
        """The items' vectors; prints a notice if scores are not products of them with users' vectors."""
        vectors, some = self._vectors, torch.arange(1, min(SOME, self.model.items))[:, None]  # histories of one item
        products, scores = self.model.user_vectors(as_batch(some, some)) @ vectors.T, self.scores(some)
        if not torch.allclose(
            products[:, 1:], scores[:, 1:], rtol=1e-3, atol=1e-6 + 1e-4 * float(products.abs().median())
        ):
            say(
                f"{type(self.model).__name__} adds to its scores what no product of vectors gives: find candidates by "
                "the vectors, and rank these by recommend(histories, items=candidates)"
            )
        return vectors


def table_of(users: Sequence[str], found: Sequence[Recommended]) -> pl.DataFrame:
    """Return a row for each user and place: user, place, item, score, source."""
    lists = [(user, one.items, one.scores, one.source) for user, one in zip(users, found, strict=True)]
    frame = pl.DataFrame(lists, schema=COLUMNS, orient="row")
    frame = frame.with_columns(place=pl.int_ranges(1, pl.col("item").list.len() + 1, dtype=pl.Int64))
    frame = frame.explode("place", "item", "score").drop_nulls("place")
    return frame.select("user", "place", "item", "score", "source")


Run = TypeVar("Run", "Served", ClickRun, TextRun)


def load(run: Any, trust: Sequence[str] = (), features: str | None = None) -> Any:
    """Return the trained run in a folder or a .ckpt file, ready to recommend or predict; its data is not needed.

    The file cannot run code: classes from outside of dprec are imported only from the modules that you name in `trust`.
    A run of a recommender has `recommend`, `similar`, `item_vectors` and `user_vectors`; the answer to each history has
    `items`, `scores`, `source` and `unknown` (see `Served.recommend`). A run of clicks or texts has `predict`.

    Args:
        run: the folder of `dprec fit`, or a checkpoint that Lightning wrote of a recommender of dprec.
        trust: names of modules whose classes the run may use, such as `["my_model"]`.
        features: a CSV file of public facts about the items, with a column `item`, for `recommend(..., only={...})`.

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
        return predicting(str(run), checkpoint, model, trust)
    ids = checkpoint["dprec"].get("catalogue")
    if ids is None and not checkpoint["dprec"]["data"]["class_path"]:  # trained with a loader of item numbers
        ids = [str(item) for item in range(1, model.items)]
    if not isinstance(ids, list) or len(ids) != model.items - 1 or not all(isinstance(raw, str) for raw in ids):
        raise UserError(f"{run} does not name the {model.items - 1} items of its model: give another run")
    return Served(model, Catalogue(ids), checkpoint["dprec"], features)


def load_as(kind: type[Run], run: str, trust: Sequence[str], wanted: str, features: str | None = None) -> Run:
    """Load a run; refuse one of another kind than `kind`."""
    served = load(run, trust, features)
    if not isinstance(served, kind):
        raise UserError(f"{run} holds a {type(served.model).__name__}, which {wanted}")
    return served
