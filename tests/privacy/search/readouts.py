"""Losses of every position, (B, T), of what a model has made of a history."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec_kernels import catalogue_softmax
from tests.privacy.search.users import Users

Softmax = Callable[[Tensor, Tensor, Tensor], Tensor]


class Readout(nn.Module):
    """Base. `softmax` is the package's own over the catalogue; the oracle puts a plain one in its place."""

    def __init__(self, dim: int, items: int, rng: random.Random) -> None:
        super().__init__()
        self.softmax: Softmax = catalogue_softmax
        self.make(dim, items, rng)

    def make(self, dim: int, items: int, rng: random.Random) -> None:
        pass

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        raise NotImplementedError

    def scored(self, table: nn.Embedding) -> nn.Embedding | None:
        """Return the table over which it is a softmax."""
        return None


class Catalogue(Readout):
    """The softmax over all items, tied."""

    def scored(self, table: nn.Embedding) -> nn.Embedding | None:
        return table

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        return self.softmax(x, table.weight, batch.targets)


class Untied(Readout):
    def make(self, dim: int, items: int, rng: random.Random) -> None:
        self.items = nn.Embedding(items, dim, padding_idx=0)

    def scored(self, table: nn.Embedding) -> nn.Embedding | None:
        return self.items

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        return self.softmax(x, self.items.weight, batch.targets)


class Spelled(Catalogue):
    """The same by hand, as most people tie."""

    def make(self, dim: int, items: int, rng: random.Random) -> None:
        self.transposed = rng.random() < 0.5

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        logits = x @ table.weight.T if self.transposed else F.linear(x, table.weight)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="none")
        return loss.view(batch.targets.shape)


class Negatives(Readout):
    """A softmax over a few rows that all users read alike, and each position's own."""

    def make(self, dim: int, items: int, rng: random.Random) -> None:
        self.ids = torch.tensor(sorted(rng.sample(range(1, items), rng.randint(1, items - 1))))
        self.indexed = rng.random() < 0.5

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        own = (x * table(batch.targets)).sum(-1)
        others = F.linear(x, table.weight[self.ids] if self.indexed else table(self.ids)).float()
        others = others.masked_fill(batch.targets.unsqueeze(-1) == self.ids, -torch.inf).logsumexp(-1)
        return -F.logsigmoid(own.float() - others - math.log(2.0))


class Signed(Readout):
    """A linear loss whose sign the data says: positions that are alike cancel."""

    def make(self, dim: int, items: int, rng: random.Random) -> None:
        generator = torch.Generator().manual_seed(rng.getrandbits(60))
        self.register_buffer("direction", torch.randn(dim, generator=generator))
        self.direction: Tensor

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        return (x * self.direction.to(x.dtype)).sum(-1) * batch.signs


class Square(Readout):
    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        return (x - batch.features).square().sum(-1)


class Dot(Readout):
    """The score of the target that was read, as in implicit feedback."""

    def forward(self, x: Tensor, batch: Users, table: nn.Embedding) -> Tensor:
        return F.softplus(-(x * table(batch.targets)).sum(-1))


READOUTS: dict[str, Any] = {
    "catalogue": Catalogue,
    "untied": Untied,
    "spelled": Spelled,
    "negatives": Negatives,
    "signed": Signed,
    "square": Square,
    "dot": Dot,
}
