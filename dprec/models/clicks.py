"""The base of click models: one logit per record, trained and evaluated by the probability of the clicks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data.draws.batch import ClickBatch, PersonBatch
from dprec.gradients.operations.embedding import about_to_read
from dprec.metrics.predictions import ClickMetrics
from dprec.models.items.tables import new_table
from dprec.models.learning.learner import Learner, refuse_unless


class ClickModel(Learner):
    """Base of all models of clicks. A subclass writes `logits`; the base does the rest.

    Args:
        numbers: counts of a record. Comes from the data.
        vocabularies: number of ids of each categorical feature, which run from 0. Comes from the data.
        options: arguments of `Learner`.
    """

    from_data: ClassVar = {"numbers": "it is the number of counts", "vocabularies": "set data.vocabularies"}

    def __init__(self, numbers: int, vocabularies: Sequence[int], **options: Any) -> None:
        super().__init__(**options)
        refuse_unless(numbers >= 0, "numbers", numbers)
        refuse_unless(all(size >= 1 for size in vocabularies), "vocabularies", vocabularies)
        self.numbers = numbers
        self.vocabularies = tuple(vocabularies)
        self.metrics = ClickMetrics()

    @abstractmethod
    def logits(self, batch: ClickBatch) -> Tensor:
        """Return the log-odds of a click (B,); entry i depends only on record i."""

    def losses(self, batch: ClickBatch | PersonBatch) -> Tensor:
        """Return each record's cross-entropy between its click and its logit; of people, the mean of their records'."""
        if isinstance(batch, PersonBatch):
            return batch.mean(self._cross_entropy(batch.records))
        return self._cross_entropy(batch)

    def _cross_entropy(self, batch: ClickBatch) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits(batch), batch.clicked, reduction="none")

    def forward(self, batch: ClickBatch) -> Tensor:
        """Return the probability of a click (B,): what trainer.predict gives of each batch."""
        return self.logits(batch).sigmoid()

    def measure(self, batch: ClickBatch) -> None:
        self.metrics.update(self.logits(batch), batch.clicked)


class FeatureTables(nn.Module):
    """One table for each categorical feature; a record's ids of a feature are pooled to one vector.

    Shorter bags are padded with -1, which reads row 0: a row of zeros that no step changes.

    >>> tables = FeatureTables([10, 5], dims=[3, 2])
    >>> first, second = tables(torch.tensor([[[9, 9], [4, -1]]]))
    >>> first.shape, second.shape, torch.allclose(first, 2 * tables.tables[0].weight[10])
    (torch.Size([1, 3]), torch.Size([1, 2]), True)

    With a `low_rank`, an id has only that many numbers, and a matrix for each feature turns them into a vector.
    """

    def __init__(
        self,
        vocabularies: Sequence[int],
        dims: Sequence[int],
        std: float = 0.1,
        pooling: str = "sum",
        low_rank: int | None = None,
        memory_map: str | None = None,
    ) -> None:
        super().__init__()
        refuse_unless(low_rank is None or low_rank >= 1, "low_rank", low_rank, "1 or more, or null")
        widths = [dim if low_rank is None else min(dim, low_rank) for dim in dims]
        refuse_unless(pooling in ("sum", "mean"), "pooling", pooling, "sum or mean")
        refuse_unless(0 <= std < float("inf"), "embedding_std", std, "0 or more")
        options: dict[str, Any] = {"mode": pooling, "padding_idx": 0}
        sizes = [(1 + size, width) for size, width in zip(vocabularies, widths, strict=True)]
        tables = [new_table(nn.EmbeddingBag, *size, memory_map, **options) for size in sizes]
        with torch.no_grad():
            for table in tables:
                table.weight.normal_(0.0, std)[0] = 0.0
        self.tables = nn.ModuleList(tables)
        pairs = zip(widths, dims, strict=True)
        self.maps = nn.ModuleList(
            nn.Linear(width, dim, bias=False) if width < dim else nn.Identity() for width, dim in pairs
        )

    def forward(self, categories: Tensor) -> list[Tensor]:
        """Return (B, d_f) of each feature f, for ids (B, F, P)."""
        rows = categories + 1
        each = [rows[:, feature].contiguous() for feature in range(len(self.tables))]  # as bags are read
        about_to_read([cast(nn.EmbeddingBag, table).weight for table in self.tables], each)
        return [own(table(ids)) for ids, table, own in zip(each, self.tables, self.maps, strict=True)]


def log_counts(numbers: Tensor) -> Tensor:
    """Return log(1 + n) / 10 of each count; negative counts, of which some logs have a few, count as 0.

    >>> log_counts(torch.tensor([-2.0, 0.0, 1.0]))
    tensor([0.0000, 0.0000, 0.0693])
    """
    # Without the division, counts would be most of a record's gradient, and clipping would shrink the rest with them.
    return numbers.clamp(min=0).log1p() / 10


def some_counts(numbers: Tensor) -> Tensor:
    """Return the same (B, D), or a zero (B, 1) where records have no counts: no parameter is without elements then.

    >>> some_counts(torch.ones(2, 0))
    tensor([[0.],
            [0.]])
    """
    return log_counts(numbers) if numbers.shape[1] else numbers.new_zeros(len(numbers), 1)


def network(inputs: int, widths: Sequence[int], where: str) -> nn.Sequential:
    """Return linear layers of these widths, each followed by a ReLU."""
    refuse_unless(all(width >= 1 for width in widths), where, list(widths), "widths of 1 or more")
    sizes = [inputs, *widths]
    layers = [(nn.Linear(before, after), nn.ReLU()) for before, after in pairwise(sizes)]
    return nn.Sequential(*(part for layer in layers for part in layer))
