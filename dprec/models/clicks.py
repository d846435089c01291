"""Click models: their base, with one logit per record, logistic regression, the pCTR model of AdaFEST, and DLRM."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data.draws.batch import ClickBatch, PersonBatch
from dprec.gradients.operations.embedding import about_to_read
from dprec.metrics.metric import ClickMetrics
from dprec.models.items.features import new_table
from dprec.models.learning.learner import Learner, refuse_unless


class ClickModel(Learner):
    """Base of all models of clicks. A subclass writes `logits`; the base does the rest.

    Losses, probabilities and metrics follow from the logits, for single records as for all records of a user.

    Args:
        numbers: how many counts a record has. Comes from the data.
        vocabularies: number of ids of each categorical feature, which run from 0. Comes from the data.
        options: arguments of `Learner`.

    >>> import torch
    >>> from dprec import ClickModel
    >>> from dprec.data import ClickBatch
    >>> class Counts(ClickModel):
    ...     def __init__(self, numbers, vocabularies, **options):
    ...         super().__init__(numbers, vocabularies, **options)
    ...         self.layer = torch.nn.Linear(numbers, 1)
    ...     def logits(self, batch):
    ...         return self.layer(batch.numbers).squeeze(1)
    >>> records = ClickBatch(torch.ones(3, 2), torch.zeros(3, 1, 1, dtype=torch.long), torch.tensor([1.0, 0.0, 1.0]))
    >>> Counts(numbers=2, vocabularies=[5]).losses(records).shape
    torch.Size([3])
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
        """Return each record's cross-entropy between its click and its logit; of users, the mean of their records'."""
        if isinstance(batch, PersonBatch):
            return batch.mean(self._cross_entropy(batch.records))
        return self._cross_entropy(batch)

    def _cross_entropy(self, batch: ClickBatch) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.logits(batch), batch.clicked, reduction="none")

    def forward(self, batch: ClickBatch) -> Tensor:
        """Return the probability of a click (B,): the result of trainer.predict for each batch."""
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
    """Return the same (B, D), or a zero (B, 1) if records have no counts, so that no parameter is empty.

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


class Logistic(ClickModel):
    """Logistic regression: one weight for each id and each count's logarithm. The baseline for networks.

    Args:
        numbers: how many counts a record has. Comes from the data.
        vocabularies: number of ids of each categorical feature, which run from 0. Comes from the data.
        options: arguments of `Learner`.

    >>> import torch
    >>> from dprec import Logistic
    >>> from dprec.data import ClickBatch
    >>> records = ClickBatch(torch.ones(3, 2), torch.tensor([[[0], [4]]] * 3), torch.tensor([1.0, 0.0, 1.0]))
    >>> Logistic(numbers=2, vocabularies=[10, 5])(records).shape  # probabilities of a click
    torch.Size([3])
    """

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
    """A click model: a network over the features' vectors and the counts' logarithms.

    The model of the AdaFEST paper for Criteo's logs. A feature of V ids gets a vector of width 2 V^¼, rounded down.

    Args:
        numbers: how many counts a record has. Comes from the data.
        vocabularies: number of ids of each categorical feature, which run from 0. Comes from the data.
        hidden: widths of the network's layers, without the last one, which is 1.
        pooling: how a record's ids of one feature become one vector.
        embedding_std: standard deviation of the tables' initial values.
        low_rank: numbers of an id, if fewer than its vector has; a matrix turns them into the vector. null: all of
            them.
        options: arguments of `Learner`.

    >>> import torch
    >>> from dprec import PCTR
    >>> from dprec.data import ClickBatch
    >>> records = ClickBatch(torch.ones(3, 2), torch.tensor([[[0], [4]]] * 3), torch.tensor([1.0, 0.0, 1.0]))
    >>> PCTR(numbers=2, vocabularies=[10, 5], hidden=[8])(records).shape  # probabilities of a click
    torch.Size([3])
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
    """A click model of the inner products of all pairs of features, and of the counts themselves.

    A bottom network turns the counts into a vector as wide as those of the categorical features. The top network reads
    that vector and the inner product of every pair of vectors. `recipes/dlrm_dpsgd.yaml` has MLPerf's sizes.

    Args:
        numbers: how many counts a record has. Comes from the data.
        vocabularies: number of ids of each categorical feature, which run from 0. Comes from the data.
        dim: width of every feature's vector.
        bottom: widths of the bottom network's layers, without the last one, which is `dim`.
        top: widths of the top network's layers, without the last one, which is 1.
        pooling: how a record's ids of one feature become one vector.
        embedding_std: standard deviation of the tables' initial values.
        low_rank: numbers of an id, if fewer than its vector has; a matrix turns them into the vector. null: all of
            them.
        options: arguments of `Learner`.

    >>> import torch
    >>> from dprec import DLRM
    >>> from dprec.data import ClickBatch
    >>> records = ClickBatch(torch.ones(3, 2), torch.tensor([[[0], [4]]] * 3), torch.tensor([1.0, 0.0, 1.0]))
    >>> DLRM(numbers=2, vocabularies=[10, 5], dim=4, bottom=[8], top=[8])(records).shape  # probabilities of a click
    torch.Size([3])
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
