"""The base of recommenders: losses for training and scores for ranking."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from dprec.data.draws.batch import RankingBatch, SequenceBatch
from dprec.errors import UserError
from dprec.metrics import RankingMetrics
from dprec.models.items.features import ContextVectors, ItemsWithFeatures, file_of_items, new_table, refuse_half
from dprec.models.items.negatives import Negatives, in_batch_softmax, shared_negatives
from dprec.models.learning.learner import Learner, refuse_unless
from dprec_kernels import catalogue_softmax

FIRST_ITEMS, ROUNDS = 512, 10  # without a history: how many items represent all, and how many steps are simulated


class Recommender(Learner):
    """Base of all models that rank items. A subclass writes `losses` and `scores`; the base does the rest.

    Item ids run from 1; id 0 is padding, so a table of items has `items` rows, and row 0 has no meaning. Evaluation,
    serving and recipes then work without further code. For a model with a vector for each position of a history,
    subclass `SequenceRecommender`, which has the losses and scores already.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        max_length: a history is cut to this many of its most recent items. Comes from the data.
        options: arguments of `Learner`.

    >>> import torch
    >>> from dprec import Recommender
    >>> from dprec.data import SequenceBatch
    >>> class Popularity(Recommender):
    ...     def __init__(self, items, **options):
    ...         super().__init__(items, **options)
    ...         self.logits = torch.nn.Parameter(torch.zeros(items))
    ...     def losses(self, batch):  # one for each user
    ...         real = batch.targets != 0
    ...         each = -self.logits.log_softmax(0)[batch.targets] * real
    ...         return each.sum(1) / real.sum(1).clamp(min=1)
    ...     def scores(self, batch):
    ...         return self.logits.expand(len(batch), -1)
    >>> model = Popularity(items=10, learning_rate=0.01)
    >>> batch = SequenceBatch(history=torch.tensor([[5, 7], [2, 0]]), targets=torch.tensor([[7, 1], [9, 0]]))
    >>> model.losses(batch).shape
    torch.Size([2])
    """

    from_data: ClassVar = {
        "items": "it is the size of the catalogue",
        "max_length": "set data.max_length",
        "context_rows": "set data.context",
    }

    def __init__(self, items: int, max_length: int = 200, **options: Any) -> None:
        super().__init__(**options)
        refuse_unless(max_length >= 1, "max_length", max_length, "1 or more")
        self.items = items
        self.max_length = max_length
        self.metrics = RankingMetrics(k=10)

    @abstractmethod
    def losses(self, batch: SequenceBatch) -> Tensor:
        """Return one loss per user (B,); entry u depends only on row u of the batch."""

    @abstractmethod
    def scores(self, batch: RankingBatch) -> Tensor:
        """Return a score for every item id (B, items); column 0 is ignored."""

    reads_weights = False  # whether `losses` counts targets by `batch.weights`
    popularity_columns = 0  # how many last coordinates of items' vectors encode popularity, not content

    @property
    def item_features(self) -> Tensor | None:
        """The numbers of each item's public features (items, S), 0 if it has fewer; None if the model has none."""
        return None

    def item_vectors(self) -> Tensor:
        """Return vectors of the items (items, d), whose products with `user_vectors` rank them.

        A model with such vectors overrides both methods.
        """
        raise UserError(f"{type(self).__name__} has no vectors of items, only scores: use recommend")

    def user_vectors(self, batch: RankingBatch) -> Tensor:
        """Return a vector of each history (B, d)."""
        raise UserError(f"{type(self).__name__} has no vectors of users, only scores: use recommend")

    def without_history(self) -> Tensor:
        """Return a score for every item id (items,) for a user without a history.

        Training's counts are private and not kept, so this uses the model alone and costs no privacy. It simulates
        users who choose each item by the model's probabilities given the item before, and returns the share of each
        item. Some items, evenly spread over the catalogue, represent all. A model with a release of popularity returns
        that instead.
        """
        several = min(self.items - 1, FIRST_ITEMS, max(16, 2**25 // self.items))
        first = torch.linspace(1, self.items - 1, several, device=self.device).round().long()  # (n,)
        none = torch.zeros(several, 1, dtype=torch.long, device=self.device)
        scores = self.scores(RankingBatch(first[:, None], none[:, 0], none)).float().clone()  # the model may keep it
        scores[:, 0] = -torch.inf
        next_item = scores.softmax(1)  # (n, items)
        share = next_item.mean(0)
        for _ in range(ROUNDS):
            share = share[first] / share[first].sum() @ next_item
        return share

    def setup(self, stage: str) -> None:
        super().setup(stage)
        data: Any = getattr(self.trainer, "datamodule", None)
        if getattr(data, "event_weights", None) is not None and not self.reads_weights:
            raise UserError(f"{type(self).__name__} reads no data.event_weights: leave it out, or use DPFormer")

    def forward(self, batch: RankingBatch) -> Tensor:
        """Return `scores`: the result of trainer.predict for each batch."""
        return self.scores(batch)

    def measure(self, batch: RankingBatch) -> None:
        self.metrics.update(self.scores(batch), batch.target, batch.seen)


class SequenceRecommender(Recommender):
    """A recommender that reads a history in order and predicts the item after each position.

    A subclass writes `encode`; one that reads context gives it a second argument, context (B, T, C), and adds what
    `in_context` says. Scores of items are inner products with `item_table`. By default this is also the table of the
    input (tied); a subclass may return another table.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        dim: width of items' vectors.
        embedding_std: standard deviation of the items' vectors at the start.
        negatives: the items beside the target in the softmax of the loss: null for all items, a number of items that
            each step draws for all users together, or in-batch for the users' targets (never with privacy).
        features: columns of `feature_file`, each with the rows that its values are hashed to. The values' vectors are
            added to an item's vector when it is read.
        feature_file: a public CSV file with a column `item`; `|` stands between several values of an item.
        context_rows: columns of the events' context, each with its rows. Comes from data.context.
        options: arguments of `Recommender`.

    >>> import torch
    >>> from dprec import SequenceRecommender
    >>> from dprec.data import SequenceBatch
    >>> class LastItem(SequenceRecommender):
    ...     def encode(self, history):
    ...         return self.embedding(history)
    >>> model = LastItem(items=101, dim=8)
    >>> model.losses(SequenceBatch(history=torch.tensor([[5, 7]]), targets=torch.tensor([[7, 9]]))).shape
    torch.Size([1])
    """

    def __init__(
        self,
        items: int,
        dim: int = 64,
        embedding_std: float = 0.1,
        negatives: Negatives = None,
        features: dict[str, int] | None = None,
        feature_file: str | None = None,
        context_rows: dict[str, int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(items, **options)
        refuse_unless(dim >= 1, "dim", dim, "1 or more")
        refuse_unless(0 <= embedding_std < float("inf"), "embedding_std", embedding_std, "0 or more")
        refuse_half(features, feature_file)
        self.feature_file = feature_file
        self.negatives = negatives
        self.shared_negatives = shared_negatives(negatives, items)
        self.embedding = self.make_embedding(dim, embedding_std)
        if features is not None:
            self.embedding.add_features(features)

        self.context_vectors: ContextVectors | None = None
        if context_rows is not None:
            if "context" not in inspect.signature(self.encode).parameters:
                raise UserError(
                    f"{type(self).__name__} reads no context: write encode(history, context), or leave data.context out"
                )
            self.context_vectors = ContextVectors(context_rows, dim)

    reads_weights = True

    def make_embedding(self, dim: int, std: float) -> ItemsWithFeatures:
        """Return the module that reads items' vectors; a model without a table of items overrides this."""
        table = new_table(ItemsWithFeatures, self.items, dim, self.memory_map, padding_idx=0)
        with torch.no_grad():
            table.weight.normal_(0.0, std)[0] = 0.0
        return table

    @property
    def assumptions(self) -> Sequence[str]:
        return [] if self.feature_file is None else [f"the features of items in {self.feature_file}"]

    @classmethod
    def check_files(cls, arguments: Mapping[str, Any]) -> None:
        file, features = arguments.get("feature_file"), arguments.get("features")
        if file is not None and features:
            file_of_items(file, "model.feature_file", list(features))

    def setup(self, stage: str) -> None:
        super().setup(stage)
        if self.feature_file is not None and stage == "fit":
            self.embedding.read_features(self.feature_file, self.item_ids_for("feature_file"))

    def item_ids_for(self, setting: str) -> list[str]:
        """Return the items' raw ids, for a setting of the model that names a file about items."""
        data: Any = getattr(self.trainer, "datamodule", None)
        if data is None:
            raise UserError(f"model.{setting} needs the items' ids: fit the model with a datamodule that has them")
        return list(data.catalogue_ids)

    @abstractmethod
    def encode(self, history: Tensor) -> Tensor:
        """Return a vector for each position (B, T) that summarises the history up to and including it: (B, T, d)."""
        raise UserError(f"{type(self).__name__} has no encode(history): write it, to return (B, T, dim)")

    @property
    def item_table(self) -> Tensor:
        """The items' output vectors (items, d)."""
        return self.embedding.weight

    @property
    def mixes_users(self) -> str | None:
        """Why a user's loss depends on other users, or None; `Privacy` refuses a model with a reason."""
        if self.negatives != "in-batch":
            return None
        return (
            "with model.negatives in-batch a user's gradient depends on other users, so clipping bounds no user's "
            "effect; give a number of shared negatives"
        )

    @property
    def loss_is_row_local(self) -> bool:
        """Whether losses depend only on parameters, buffers and a user's row: then workers can compute them."""
        return self.negatives is None

    def shared_rows(self) -> Iterable[tuple[Tensor, Tensor]]:
        """The items that all users of the step have as negatives."""
        return () if self.shared_negatives is None else [(self.item_table, self.shared_negatives.of(self.global_step))]

    def losses(self, batch: SequenceBatch) -> Tensor:
        """Return each user's mean cross-entropy over all items, or over `negatives`; 0 for a user without targets.

        The mean is by the targets' weights, if the batch has some.
        """
        encoded = self._encoded(batch)
        if encoded.shape[:-1] != batch.targets.shape:
            raise UserError(
                f"{type(self).__name__}.encode returned {tuple(encoded.shape)} for a history of "
                f"{tuple(batch.history.shape)}: return one vector for every position, (B, T, dim)"
            )
        if self.shared_negatives is not None:
            loss = self.shared_negatives.softmax(encoded, self.item_table, batch.targets, self.global_step)  # (B, T)
        elif self.negatives == "in-batch":
            loss = in_batch_softmax(encoded, self.item_table, batch.targets)
        else:
            loss = catalogue_softmax(encoded, self.item_table, batch.targets)
        if batch.weights is None:
            return loss.sum(1) / (batch.targets != 0).sum(1).clamp(min=1)
        weights = batch.weights * (batch.targets != 0)
        whole = weights.sum(1)
        return (loss * weights).sum(1) / whole.masked_fill(whole == 0, 1.0)

    @property
    def item_features(self) -> Tensor | None:
        own = isinstance(self.embedding, ItemsWithFeatures) and self.embedding.features is not None
        return self.embedding.values if own else None

    def item_vectors(self) -> Tensor:
        return self.item_table

    def user_vectors(self, batch: RankingBatch) -> Tensor:
        return at_last(batch.history, self._encoded(batch))

    def scores(self, batch: RankingBatch) -> Tensor:
        return self.user_vectors(batch) @ self.item_table.T

    def _encoded(self, batch: SequenceBatch | RankingBatch) -> Tensor:
        """Return `encode` of the histories, with their context if there is any."""
        if batch.context is None:
            return self.encode(batch.history)
        if self.context_vectors is None:
            raise UserError(
                f"the data has context, for which {type(self).__name__} has no rows: give it context_rows, as "
                "data.sizes has them, or leave data.context out"
            )
        encode: Any = self.encode
        return encode(batch.history, batch.context)

    def in_context(self, items: Tensor, context: Tensor | None) -> Tensor:
        """Return the items' vectors (B, T, d) with those of their context (B, T, C) added."""
        return items if context is None or self.context_vectors is None else items + self.context_vectors(context)


def at_last(history: Tensor, encoded: Tensor) -> Tensor:
    """Return the encoding (B, T, r) at the last item of each history (B, T): (B, r)."""
    last = (history != 0).sum(1).clamp(min=1) - 1
    return encoded[torch.arange(last.shape[0], device=last.device), last]
