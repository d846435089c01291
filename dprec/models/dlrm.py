"""DLRM: counts and categories in one space, every pair compared by an inner product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dprec.data.draws.batch import ClickBatch
from dprec.models.clicks import ClickModel, FeatureTables, network, some_counts
from dprec.models.learning.learner import refuse_unless


class DLRM(ClickModel):
    """Predicts a click from the inner products of all pairs of features, and from the counts themselves.

    A bottom network turns the counts into a vector as wide as those of the categorical features. The top network
    reads that vector and the inner product of every pair of vectors. `recipes/dlrm_dpsgd.yaml` has MLPerf's sizes.

    Args:
        dim: width of every feature's vector.
        bottom: widths of the bottom network's layers, without the last one, which is `dim`.
        top: widths of the top network's layers, without the last one, which is 1.
        pooling: how a record's ids of one feature become one vector.
        embedding_std: standard deviation of the tables' initial values.
        low_rank: numbers of an id, if fewer than its vector has; a matrix turns them into the vector.
    """

    def __init__(
        self,
        numbers: int,
        vocabularies: Sequence[int],
        dim: int = 16,
        bottom: Sequence[int] = (512, 256, 64),
        top: Sequence[int] = (512, 256),
        pooling: Literal["sum", "mean"] = "sum",
        embedding_std: float = 0.1,
        low_rank: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(numbers, vocabularies, **options)
        refuse_unless(dim >= 1, "dim", dim, "1 or more")
        features = len(self.vocabularies)
        self.tables = FeatureTables(
            self.vocabularies, [dim] * features, embedding_std, pooling, low_rank, self.memory_map
        )
        self.bottom = network(max(1, numbers), [*bottom, dim], "bottom")
        self.top = network(dim + features * (features + 1) // 2, top, "top")
        self.output = nn.Linear(top[-1] if top else dim + features * (features + 1) // 2, 1)

    def logits(self, batch: ClickBatch) -> Tensor:
        counts = self.bottom(some_counts(batch.numbers).to(self.output.weight.dtype))  # (B, d)
        vectors = torch.stack([counts, *self.tables(batch.categories)], dim=1)  # (B, 1 + F, d)
        products = vectors @ vectors.mT
        one, other = torch.tril_indices(products.shape[1], products.shape[2], -1, device=products.device)
        seen = torch.cat([counts, products[:, one, other]], dim=1)
        return self.output(self.top(seen)).squeeze(1)
