"""The base of recommenders that rank items which releases describe, and train few parameters beside them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor

from dprec.accounting.release import ExactSums, Release
from dprec.data.draws.batch import RankingBatch, SequenceBatch
from dprec.models.base import Recommender, at_last
from dprec.models.items.described import DescribedItems


class DescribedRecommender(Recommender):
    """Compares the described items with a vector of the history. A subclass sets `described` and writes `encode`."""

    described: DescribedItems
    popularity_columns = 2
    goes_on = False  # what is trained is about the axes of one description

    @property
    def releases(self) -> tuple[Release, ...]:
        return self.described.releases

    def prepare(self, data: Any, sums: ExactSums) -> None:
        self.described.prepare(data.training, sums)

    @abstractmethod
    def encode(self, history: Tensor) -> Tensor:
        """Return a vector for each position (B, T) that summarises the history up to and including it: (B, T, r)."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        return self.described.loss(self.encode(batch.history), batch.targets)

    def without_history(self) -> Tensor:
        """Return how many users have each item, as released."""
        return self.described.popularity

    def item_vectors(self) -> Tensor:
        return self.described.item_vectors()

    def user_vectors(self, batch: RankingBatch) -> Tensor:
        return self.described.user_vectors(at_last(batch.history, self.encode(batch.history)))

    def scores(self, batch: RankingBatch) -> Tensor:
        return self.described.scores(at_last(batch.history, self.encode(batch.history)))
