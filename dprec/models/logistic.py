"""Logistic regression on clicks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dprec.data.draws.batch import ClickBatch
from dprec.models.clicks import ClickModel, FeatureTables, log_counts


class Logistic(ClickModel):
    """Logistic regression: one weight for each id and each count's logarithm. The baseline for networks."""

    def __init__(self, numbers: int, vocabularies: Sequence[int], **options: Any) -> None:
        super().__init__(numbers, vocabularies, **options)
        self.tables = FeatureTables(
            self.vocabularies,
            [1] * len(self.vocabularies),
            std=0.0,
            memory_map=self.memory_map,
            shard=self.shard_tables,
        )
        self.counts = nn.Linear(numbers, 1)

    def logits(self, batch: ClickBatch) -> Tensor:
        weights = torch.cat(self.tables(batch.categories), dim=1)  # (B, F)
        return weights.sum(1) + self.counts(log_counts(batch.numbers).to(self.counts.weight.dtype)).squeeze(1)
