"""The pCTR model of AdaFEST: a vector for every feature, whose width depends on the feature, then one network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dprec.data.draws.batch import ClickBatch
from dprec.models.clicks import ClickModel, FeatureTables, log_counts, network


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
