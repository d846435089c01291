"""Recurrent recommenders: torch's GRU and LSTM over a user's history, with one table for input and output items."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from torch import Tensor, nn

from dprec.models.base import SequenceRecommender
from dprec.models.learning.learner import refuse_unless


class Recurrent(SequenceRecommender):
    """Predicts the next item from a state that every item updates; a subclass chooses the cell.

    Args:
        dim: width of items and hidden states.
        layers: number of recurrent layers; each reads the states of the one below.
        dropout: share of activations dropped in training: of input items, between layers, and at the end.
    """

    def __init__(self, items: int, dim: int = 64, layers: int = 1, dropout: float = 0.2, **options: Any) -> None:
        super().__init__(items, dim, **options)
        refuse_unless(layers >= 1, "layers", layers)
        refuse_unless(0 <= dropout < 1, "dropout", dropout)
        self.dropout = nn.Dropout(dropout)
        # Only between layers: torch warns if there is one layer.
        self.cell = self.make_cell(dim, layers, dropout if layers > 1 else 0.0)

    @abstractmethod
    def make_cell(self, dim: int, layers: int, dropout: float) -> nn.RNNBase:
        """Return the recurrent layers, batch first."""

    def encode(self, history: Tensor, context: Tensor | None = None) -> Tensor:
        read = self.in_context(self.embedding(history), context)
        states, _ = self.cell(self.dropout(read))  # (B, T, d)
        encoded: Tensor = self.dropout(states)
        return encoded


class GRU(Recurrent):
    """A recommender of gated recurrent units.

    >>> import torch
    >>> GRU(items=101, dim=8).encode(torch.tensor([[5, 7, 0]])).shape
    torch.Size([1, 3, 8])
    """

    def make_cell(self, dim: int, layers: int, dropout: float) -> nn.RNNBase:
        return nn.GRU(dim, dim, layers, dropout=dropout, batch_first=True)


class LSTM(Recurrent):
    """A recommender of long short-term memories."""

    def make_cell(self, dim: int, layers: int, dropout: float) -> nn.RNNBase:
        return nn.LSTM(dim, dim, layers, dropout=dropout, batch_first=True)
