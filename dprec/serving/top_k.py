"""Finds the best items for histories of item numbers, in batches of users with histories of similar length."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dprec.data.draws.batch import RankingBatch
from dprec.data.logs.context import ContextColumns
from dprec.data.selection.catalogue import Catalogue
from dprec.models import Recommender
from dprec.notices import paced

HISTORY, POPULARITY = "history", "popularity"
NUMBERS = 2**23  # scores of a batch of users in memory
USERS = 512


NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Question:
    """A request for one user, in item numbers.

    Args:
        history: (n,) the known items, oldest first.
        codes: (n,) their context, as `ContextColumns.read` returns it; None if the run reads none.
        unknown: raw ids of the history that the run does not know.
        k: how many items.
        exclude_seen: leave out the items of the history.
        items: (m,) the only items to choose from; None for all.
        exclude: (e,) items to leave out.
    """

    history: np.ndarray
    codes: np.ndarray | None = None
    unknown: list[str] = field(default_factory=list)
    k: int = 10
    exclude_seen: bool = True
    items: np.ndarray | None = None
    exclude: np.ndarray = field(default_factory=lambda: NONE)


@dataclass(frozen=True)
class Ranked:
    """Items, best first, and their scores."""

    items: list[str]
    scores: list[float]


@dataclass(frozen=True)
class Recommended(Ranked):
    """One user's recommendations. Scores are logits, or for popularity the share of all choices."""

    source: str  # "history", or "popularity" if no item of the history is known
    unknown: list[str]  # ids of the history that the run does not know


class Scores(nn.Module):
    """Computes scores of all items (B, items) for histories of item numbers (B, T), oldest first, zeros on the right.

    A model that reads context also takes its values (B, T, C), as in a batch. A history without an item gets
    popularity, and item 0, the padding, is never the best.
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

    def forward(self, history: Tensor, context: Tensor | None = None) -> Tensor:
        return self.of(as_batch(history, history, context))

    def of(self, batch: RankingBatch) -> Tensor:
        scores = self.model.scores(batch).float()
        known = (batch.history != 0).any(1, keepdim=True)
        return torch.where(known, scores, self.popularity).masked_fill(self.padding, -torch.inf)


def as_batch(history: Tensor, seen: Tensor, context: Tensor | None = None) -> RankingBatch:
    """Return histories as a model's batch; `seen` has the full histories, which may be longer."""
    return RankingBatch(history, history[:, 0], seen, context)


def in_batches(
    questions: Sequence[Question], model: Recommender, columns: ContextColumns | None
) -> Iterator[tuple[list[int], RankingBatch]]:
    """Yield places of questions and their batch: short histories are not padded to the length of long ones."""
    order = sorted(range(len(questions)), key=lambda place: len(questions[place].history))
    size = min(USERS, max(1, NUMBERS // model.items))
    starts = range(0, len(order), size)
    for start in paced(starts, f"recommending: {size} users at a time, part", len(starts)):
        places = order[start : start + size]
        seen = [questions[place].history for place in places]
        recent, context = _padded([row[-model.max_length :] for row in seen]), None
        if columns is not None:
            codes = [questions[place].codes for place in places]
            told = [np.zeros_like(row) if code is None else code for row, code in zip(seen, codes, strict=True)]
            context = torch.from_numpy(columns.values(_padded([row[-model.max_length :] for row in told]).numpy()))
        yield places, as_batch(recent, _padded(seen), context)  # (B, T), (B, S), (B, T, C)


@torch.inference_mode()
def best(
    questions: Sequence[Question], scores_of: Scores, catalogue: Catalogue, columns: ContextColumns | None
) -> list[Recommended]:
    """Return the best items for each question, in order."""
    found: dict[int, Recommended] = {}
    for places, batch in in_batches(questions, scores_of.model, columns):
        asked = [questions[place] for place in places]
        scores = scores_of.of(batch)
        hidden = [np.append(one.exclude, one.history if one.exclude_seen else NONE) for one in asked]
        scores.scatter_(1, _padded(hidden), -torch.inf)
        for row, one in zip(scores, asked, strict=True):
            if one.items is not None:
                chosen = torch.from_numpy(one.items)
                kept = row[chosen]
                row.fill_(-torch.inf)[chosen] = kept
        for place, one, top in zip(places, asked, list_best(scores, [one.k for one in asked], catalogue), strict=True):
            source = HISTORY if len(one.history) else POPULARITY
            found[place] = Recommended(top.items, top.scores, source, one.unknown)
    return [found[place] for place in range(len(questions))]


def list_best(scores: Tensor, ks: Sequence[int], catalogue: Catalogue) -> list[Ranked]:
    """Return the first k items of each row of scores (B, items), without those of -infinity."""
    top, found = scores.topk(min(max(ks), scores.shape[1] - 1)), []
    for k, values, items in zip(ks, top.values.tolist(), top.indices.tolist(), strict=True):
        left = [place for place, value in enumerate(values[:k]) if math.isfinite(value)]
        found.append(Ranked([catalogue.raw(items[place]) for place in left], [values[place] for place in left]))
    return found


def _padded(rows: Sequence[np.ndarray]) -> Tensor:
    """Pad rows to (B, T), with T the longest, at least 1, and zeros on the right."""
    padded = np.zeros((len(rows), max(1, *map(len, rows))), dtype=np.int64)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return torch.from_numpy(padded)
