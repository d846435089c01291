"""Ranks all items for histories of item numbers, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dprec.data.draws.batch import RankingBatch, RankingInContext
from dprec.data.logs.context import ContextColumns
from dprec.models import Recommender

NUMBERS = 2**23  # scores at a time: what a batch of users may have in memory
USERS = 512


@dataclass(frozen=True)
class Best:
    """The best items (n,) of one user, best first, with their scores."""

    items: np.ndarray
    scores: np.ndarray
    by_popularity: bool


class Ranker:
    """Ranks all items for histories of item ids 1..V. A user without a history gets what the model gives to anybody."""

    def __init__(self, model: Recommender, context_columns: ContextColumns | None = None) -> None:
        self.model = model.eval()
        self.context_columns = context_columns  # that the model reads

    @cached_property
    def popularity(self) -> Tensor:
        with torch.inference_mode():
            return self.model.without_history().float()  # (items,)

    def best(
        self,
        histories: Sequence[np.ndarray],
        k: int,
        exclude_seen: bool,
        advance: Callable[[int], object] = lambda _: None,
        codes: Sequence[np.ndarray] | None = None,
    ) -> list[Best]:
        """The best of each history, in their order; ``advance`` is told how many users are done.

        `codes` are those of the context of each history's events (`EventContext`), for a model that reads it.
        """
        found: list[Best | None] = [None] * len(histories)
        for users in self._batches(histories):
            batch = [histories[user] for user in users]
            known = None if codes is None else [codes[user] for user in users]
            for user, best in zip(users, self._ranked(batch, k, exclude_seen, known), strict=True):
                found[user] = best
            advance(len(users))
        return [best for best in found if best is not None]

    def _batches(self, histories: Sequence[np.ndarray]) -> Iterator[list[int]]:
        """Users of similar length together, so that short histories are not padded to long ones."""
        order = sorted(range(len(histories)), key=lambda user: len(histories[user]))
        size = min(USERS, max(1, NUMBERS // self.model.items))
        for start in range(0, len(order), size):
            yield order[start : start + size]

    @torch.inference_mode()
    def _ranked(
        self, histories: Sequence[np.ndarray], k: int, exclude_seen: bool, codes: Sequence[np.ndarray] | None
    ) -> Iterator[Best]:
        empty = [len(history) == 0 for history in histories]
        seen = _padded(histories)  # (B, S)
        recent = self._recent(histories)
        batch = RankingBatch(recent, torch.zeros(len(histories), dtype=torch.long), seen)
        if self.context_columns is not None and codes is not None:
            values = self.context_columns.values(self._recent(codes).numpy())  # (B, T, C)
            batch = RankingInContext(batch.history, batch.target, seen, torch.from_numpy(values))
        if all(empty):
            scores = self.popularity.expand(len(histories), -1).clone()  # (B, items)
        else:
            scores = self.model.scores(batch).float()
            scores = scores.clone() if not any(empty) else scores.where(~torch.tensor(empty)[:, None], self.popularity)
        scores[:, 0] = -torch.inf  # padding
        if exclude_seen:
            scores.scatter_(1, seen, -torch.inf)
        best = scores.topk(min(k, self.model.items - 1))
        for values, items, unknown in zip(best.values.numpy(), best.indices.numpy(), empty, strict=True):
            left = np.isfinite(values)
            yield Best(items[left], values[left], unknown)

    def _recent(self, rows: Sequence[np.ndarray]) -> Tensor:
        return _padded([row[-self.model.max_length :] for row in rows])


def _padded(histories: Sequence[np.ndarray]) -> Tensor:
    """Histories (B, T) as long as the longest, at least 1, with zeros on the right."""
    rows = np.zeros((len(histories), max(1, *map(len, histories))), dtype=np.int64)
    for row, history in zip(rows, histories, strict=True):
        row[: len(history)] = history
    return torch.from_numpy(rows)
