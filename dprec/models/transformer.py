"""The Transformer of DPFormer: causal self-attention over a user's history, one table for input and output items."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dprec.models.base import SequenceRecommender
from dprec.models.items.features import copied_table
from dprec.models.networks.causal_network import Activation, CausalNetwork, Norm


class Transformer(SequenceRecommender):
    """Predicts the next item from the history with a stack of causal Transformer blocks.

    It is the plain network to start from or to compare with; `DPFormer` adds what private training needs. Scores are
    inner products with the table that reads the items, unless `tied` is False.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        dim: width of items and hidden vectors.
        heads: attention heads; divides `dim`.
        blocks: number of Transformer blocks.
        feedforward: hidden width of each block's two-layer network; None means 4 * dim.
        dropout: share of activations dropped in training.
        norm: where the layer norms are: before each sublayer (pre) or after it (post).
        activation: relu or gelu.
        network_scale: factor of the positions and of what blocks add to the items' vectors. With a small factor, most
            of a user's clipped gradient belongs to the items (docs/dpformer.md).
        start_mean: at the start, each block adds about this times the mean of the history, layer-normed with pre; null
            for random weights.
        fade: attention falls by this factor with each item further back, for any weights; 1: it does not fade.
        tied: read and score items with the same table; False: a separate table for each.
        options: arguments of `SequenceRecommender`.

    >>> import torch
    >>> from dprec import Transformer
    >>> from dprec.data import RankingBatch, SequenceBatch
    >>> model = Transformer(items=10, dim=4).eval()
    >>> history = torch.tensor([[5, 7, 0], [2, 9, 4]])  # of two users
    >>> model.losses(SequenceBatch(history, targets=torch.tensor([[7, 1, 0], [9, 4, 6]]))).shape
    torch.Size([2])
    >>> model.scores(RankingBatch(history, target=torch.tensor([1, 6]), seen=history)).shape
    torch.Size([2, 10])
    """

    kind_of_network: type[CausalNetwork] = CausalNetwork

    def __init__(
        self,
        items: int,
        dim: int = 64,
        heads: int = 1,
        blocks: int = 2,
        feedforward: int | None = None,
        dropout: float = 0.2,
        norm: Norm = "pre",
        activation: Activation = "relu",
        network_scale: float = 1.0,
        start_mean: float | None = None,
        fade: float = 1.0,
        tied: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(items, dim, **options)
        self.output = None if tied else copied_table(self.embedding, self.memory_map)
        self.network = self.kind_of_network(
            dim, self.max_length, heads, blocks, feedforward, dropout, norm, activation, network_scale, start_mean, fade
        )

    @property
    def item_table(self) -> Tensor:
        return self.embedding.weight if self.output is None else self.output.weight

    def encode(self, history: Tensor, context: Tensor | None = None) -> Tensor:
        encoded: Tensor = self.network(self.in_context(self.embedding(history), context))
        return encoded
