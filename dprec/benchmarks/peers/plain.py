"""The same models in plain PyTorch: nn modules and `F.cross_entropy` over all items' scores."""

from __future__ import annotations

from abc import abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.models.networks.causal_network import CausalNetwork


class PlainModel(nn.Module):
    """Returns one loss per user. The untied form has only layers that Opacus and fastDP support.

    Item 0 is padding on the right: it is not a class of the softmax, and no position with a target attends to it.
    """

    whole_rows = False  # Opacus, fastDP and Opake need whole rows of users; the untied form always has them

    def __init__(self, ids: int, length: int, dim: int, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ids, dim)
        nn.init.normal_(self.embedding.weight, std=0.1)
        if not tied:
            self.output = nn.Linear(dim, ids - 1, bias=False)
        self.tied = tied
        self.build(length, dim)

    @abstractmethod
    def build(self, length: int, dim: int) -> None:
        """Make the layers between the input items and the scores."""

    @abstractmethod
    def encode(self, x: Tensor) -> Tensor:
        """Return the output of each position (B, T, d), which depends on it and earlier ones."""

    def forward(self, history: Tensor, targets: Tensor) -> Tensor:
        x = self.encode(self.embedding(history))
        real = targets != 0
        if self.tied and not self.whole_rows:  # only positions with a target, which saves the scores of the padding
            scores = F.linear(x[real], self.embedding.weight[1:])
            each = F.cross_entropy(scores, targets[real] - 1, reduction="none")
            loss = x.new_zeros(targets.shape).masked_scatter(real, each)
        else:
            scores = (F.linear(x, self.embedding.weight[1:]) if self.tied else self.output(x)).flatten(0, 1)
            each = F.cross_entropy(scores, targets.flatten() - 1, ignore_index=-1, reduction="none")
            loss = each.view(targets.shape)
        return loss.sum(1) / real.sum(1).clamp(min=1)


class PlainTransformer(PlainModel):
    def build(self, length: int, dim: int) -> None:
        self.network = _PlacedByRow(dim, length, heads=1, blocks=2, feedforward=None, dropout=0.0)

    def encode(self, x: Tensor) -> Tensor:
        encoded: Tensor = self.network(x)
        return encoded


class _PlacedByRow(CausalNetwork):
    def placed(self, x: Tensor) -> Tensor:
        # One row for each user, because Opacus assumes that the first dimension of every input is the users.
        places = torch.arange(x.shape[1]).repeat(len(x), 1)
        placed: Tensor = x + self.scale * self.positions(places)  # (B, T, d)
        return placed


class PlainGRU(PlainModel):
    def build(self, length: int, dim: int) -> None:
        self.cell: nn.Module = nn.GRU(dim, dim, batch_first=True)

    def encode(self, x: Tensor) -> Tensor:
        states: Tensor = self.cell(x)[0]
        return states


class PlainLSTM(PlainGRU):
    def build(self, length: int, dim: int) -> None:
        self.cell = nn.LSTM(dim, dim, batch_first=True)
