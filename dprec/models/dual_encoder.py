"""The dual encoder of EANA: one tower reads the context, the other looks up an item; the score is their product."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor, nn

from dprec.errors import UserError
from dprec.models.base import SequenceRecommender
from dprec.models.items.features import copied_table
from dprec.models.learning.learner import refuse_unless
from dprec.models.networks.causal_network import CausalNetwork, running_means


class DualEncoder(SequenceRecommender):
    """Predicts the next item from a vector of the context: a bag of the earlier items, or a Transformer over them.

    The model of the EANA paper: a look-up for the item, and a tower of any depth for the context. With two tables and
    shared `negatives` a step changes few rows, so the strategies of `dprec.sparsity` pay off.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        dim: width of item vectors and of both towers' outputs.
        tower: bag (the mean of the context's vectors, plus a two-layer network of it), mean (without the network, as in
            the paper) or transformer.
        context: a bag holds this many of the most recent items; None means all of them.
        feedforward: hidden width of the towers' two-layer networks; None means 4 * dim.
        blocks: Transformer blocks of the transformer tower.
        heads: attention heads of these blocks; divides `dim`.
        dropout: share of activations dropped in training.
        tied: one table for context and items; False: a separate table for each.
        options: arguments of `SequenceRecommender`.

    >>> import torch
    >>> from dprec import DualEncoder
    >>> from dprec.data import SequenceBatch
    >>> model = DualEncoder(items=1000, dim=4, tower="mean", negatives=20)
    >>> model.losses(SequenceBatch(history=torch.tensor([[5, 7]]), targets=torch.tensor([[7, 9]]))).shape
    torch.Size([1])
    """

    def __init__(
        self,
        items: int,
        dim: int = 64,
        tower: Literal["bag", "mean", "transformer"] = "bag",
        context: int | None = None,
        feedforward: int | None = None,
        blocks: int = 2,
        heads: int = 1,
        dropout: float = 0.0,
        tied: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(items, dim, **options)
        refuse_unless(tower in ("bag", "mean", "transformer"), "tower", tower, "bag, mean or transformer")
        refuse_unless(context is None or context >= 1, "context", context, "1 or more, or null")
        refuse_unless(feedforward is None or feedforward >= 1, "feedforward", feedforward, "1 or more, or null")
        refuse_unless(blocks >= 0, "blocks", blocks, "0 or more")
        refuse_unless(heads >= 1 and dim % heads == 0, "heads", heads, "a number that divides dim")
        refuse_unless(0 <= dropout < 1, "dropout", dropout, "0 or more, below 1")
        if self.feature_file is not None and not tied:
            raise UserError("model.features with two tables would not be read: set model.tied to true")
        self.own_context = None if tied else copied_table(self.embedding, self.memory_map)
        width = feedforward or 4 * dim
        self.tower: nn.Module = (
            BagTower(dim, context, width if tower == "bag" else None, dropout)
            if tower != "transformer"
            else CausalNetwork(dim, self.max_length, heads, blocks, width, dropout)
        )

    def encode(self, history: Tensor, context: Tensor | None = None) -> Tensor:
        items = self.embedding if self.own_context is None else self.own_context
        return self.tower(self.in_context(items(history), context))


class BagTower(nn.Module):
    """The mean of the vectors up to each position, plus a two-layer network of it unless `feedforward` is None.

    Every position has its bag, so one pass trains on all of a user's transitions.
    """

    def __init__(self, dim: int, context: int | None, feedforward: int | None, dropout: float) -> None:
        super().__init__()
        self.context = context
        self.network = (
            None
            if feedforward is None
            else nn.Sequential(nn.Linear(dim, feedforward), nn.ReLU(), nn.Dropout(dropout), nn.Linear(feedforward, dim))
        )

    def forward(self, x: Tensor) -> Tensor:
        bags = running_means(x, self.context)
        return bags if self.network is None else bags + self.network(bags)
