"""Logistic regression on clicks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dprec.data.draws.batch import ClickBatch
from dprec.models.clicks import ClickModel, FeatureTables, some_counts


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
