"""Recurrent recommenders: torch's GRU and LSTM over a user's history, with one table for input and output items."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from dprec.errors import UserError
from dprec.models.base import SequenceRecommender
from dprec.models.learning.learner import refuse_unless
from dprec.models.networks.causal_network import fading_means, refuse_scale


class Recurrent(SequenceRecommender):
    """Predicts the next item from a state that every item updates; a subclass chooses the cell and describes the
    arguments.
    """

    def __init__(
        self,
        items: int,
        dim: int = 64,
        layers: int = 1,
        dropout: float = 0.2,
        shortcut_mean: float | None = None,
        fade: float = 1.0,
        network_scale: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(items, dim, **options)
        refuse_unless(layers >= 1, "layers", layers, "1 or more")
        refuse_unless(0 <= dropout < 1, "dropout", dropout, "0 or more, below 1")
        if shortcut_mean is not None and not 0 <= shortcut_mean < math.inf:
            raise UserError(f"model.shortcut_mean is {shortcut_mean}: give a number from 0, or null for no shortcut")
        refuse_scale(network_scale)
        if shortcut_mean is None and network_scale != 1:
            raise UserError("model.network_scale needs a shortcut: give model.shortcut_mean, too")
        refuse_unless(0 < fade <= 1, "fade", fade, "a number above 0, up to 1")
        if shortcut_mean is None and fade != 1:
            raise UserError("model.fade needs a shortcut: give model.shortcut_mean, too")
        self.mean, self.fade, self.scale = shortcut_mean, fade, network_scale
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(0 if shortcut_mean is None else 2))
        self.dropout = nn.Dropout(dropout)
        # Only between layers: torch warns if there is one layer.
        self.cell = self.make_cell(dim, layers, dropout if layers > 1 else 0.0)

    @abstractmethod
    def make_cell(self, dim: int, layers: int, dropout: float) -> nn.RNNBase:
        """Return the recurrent layers, batch first."""

    def encode(self, history: Tensor, context: Tensor | None = None) -> Tensor:
        read = self.dropout(self.in_context(self.embedding(history), context))
        if self.mean is None:
            return self._states(read)
        first, last = self.norms
        normed = first(read)
        passed: Tensor = last(read + self.mean * fading_means(normed, self.fade) + self.scale * self._states(normed))
        return passed

    def _states(self, read: Tensor) -> Tensor:
        states: Tensor = self.dropout(self.cell(read)[0])  # (B, T, d)
        return states


class GRU(Recurrent):
    """A recommender of gated recurrent units: predicts the next item from a state that every item updates.

    Its cost grows with the length of the history, where that of attention grows with the square. In private training,
    give `shortcut_mean`, a small `network_scale` and `fade`, as `recipes/movielens_gru.yaml` does.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        dim: width of items and hidden states.
        layers: number of recurrent layers; each reads the states of the one below.
        dropout: share of activations dropped in training: of input items, between layers, and at the end.
        shortcut_mean: adds a skip connection: what is scored is the layer-normed sum of the last item, of this times
            the mean of the history, and of `network_scale` times the cell's state. The cell and the mean read
            layer-normed items. null: the state alone, as in torch.
        fade: an item's weight in the history's mean falls by this factor with each step back; 1: equal weights.
        network_scale: factor of the state beside a shortcut. With a small factor most of a user's clipped gradient
            belongs to the items, as in `Transformer` (docs/dpformer.md).
        options: arguments of `SequenceRecommender`.

    >>> import torch
    >>> from dprec import GRU
    >>> GRU(items=101, dim=8).encode(torch.tensor([[5, 7, 0]])).shape
    torch.Size([1, 3, 8])
    """

    def make_cell(self, dim: int, layers: int, dropout: float) -> nn.RNNBase:
        return nn.GRU(dim, dim, layers, dropout=dropout, batch_first=True)


class LSTM(Recurrent):
    """A recommender of long short-term memories: as `GRU`, with another cell.

    In private training, give `shortcut_mean`, a small `network_scale` and `fade`, as `recipes/movielens_lstm.yaml`
    does.

    Args:
        items: number of item ids, the padding included. Comes from the data.
        dim: width of items and hidden states.
        layers: number of recurrent layers; each reads the states of the one below.
        dropout: share of activations dropped in training: of input items, between layers, and at the end.
        shortcut_mean: adds a skip connection from the last item and from this times the mean of the history, as in
            `GRU`. null: the state alone, as in torch.
        fade: an item's weight in the history's mean falls by this factor with each step back; 1: equal weights.
        network_scale: factor of the state beside a shortcut, as in `GRU`.
        options: arguments of `SequenceRecommender`.

    >>> import torch
    >>> from dprec import LSTM
    >>> LSTM(items=101, dim=8, shortcut_mean=1.0, network_scale=0.1).encode(torch.tensor([[5, 7, 0]])).shape
    torch.Size([1, 3, 8])
    """

    def make_cell(self, dim: int, layers: int, dropout: float) -> nn.RNNBase:
        return nn.LSTM(dim, dim, layers, dropout=dropout, batch_first=True)
