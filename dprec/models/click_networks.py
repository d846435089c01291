"""Models of clicks: logistic regression, the pCTR model of AdaFEST, and DLRM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dprec.data.draws.batch import ClickBatch
from dprec.models.clicks import ClickModel, FeatureTables, log_counts, network, some_counts
from dprec.models.learning.learner import refuse_unless


class Logistic(ClickModel):
    """Logistic regression: one weight for each id and each count's logarithm. The baseline for networks."""

    def __init__(self, numbers: int, vocabularies: Sequence[int], **options: Any) -> None:
        super().__init__(numbers, vocabularies, **options)
        self.tables = FeatureTables(
            self.vocabularies,
            [1] * len(self.vocabularies),
            std=0.0,
            memory_map=self.memory_map,
        )
        self.counts = nn.Linear(max(1, numbers), 1)

    def logits(self, batch: ClickBatch) -> Tensor:
        counts = self.counts(some_counts(batch.numbers).to(self.counts.weight.dtype))  # (B, 1)
        return torch.cat([counts, *self.tables(batch.categories)], dim=1).sum(1)


class PCTR(ClickModel):
    """Predicts a click by a network over the features' vectors and the counts' logarithms.

    A feature of V ids gets a vector of width 2 V^¼, rounded down.

    Args:
        hidden: widths of the network's layers, without the last one, which is 1.
        pooling: how a record's ids of one feature become one vector.
        embedding_std: standard deviation of the tables' initial values.
        low_rank: numbers of an id, if fewer than its vector has; a matrix turns them into the vector.
    """

    def __init__(
        self,
        numbers: int,
        vocabularies: Sequence[int],
        hidden: Sequence[int] = (598, 598, 598, 598),
        pooling: Literal["sum", "mean"] = "sum",
        embedding_std: float = 0.1,
        low_rank: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(numbers, vocabularies, **options)
        widths = [int(2 * size**0.25) for size in self.vocabularies]
        self.tables = FeatureTables(self.vocabularies, widths, embedding_std, pooling, low_rank, self.memory_map)
        inputs = numbers + sum(widths)
        self.network = network(inputs, hidden, "hidden")
        self.output = nn.Linear(hidden[-1] if hidden else inputs, 1)

    def logits(self, batch: ClickBatch) -> Tensor:
        counts = log_counts(batch.numbers).to(self.output.weight.dtype)
        seen = torch.cat([counts, *self.tables(batch.categories)], dim=1)  # (B, numbers + Σ_f d_f)
        return self.output(self.network(seen)).squeeze(1)


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
