"""The interface of the compared systems, the plain model that they train, and the systems of dprec."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.data.draws.buckets import Buckets
from dprec.data.selection.packing import padded
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows
from dprec.models import Transformer
from dprec.models.learning.learner import mean_loss
from dprec.models.networks.causal_network import CausalNetwork
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.cores import cores_for
from dprec.privacy.private_gradient import PrivateGradient

NOISE = 1.0


def adam(module: nn.Module) -> torch.optim.Adam:
    """The optimizer of every system."""
    return torch.optim.Adam(module.parameters(), lr=1e-3, weight_decay=1e-5)


class CannotRun(Exception):
    """The reason why a system has no number."""


class PlainTransformer(nn.Module):
    """DPFormer's Transformer, one head and two blocks, in plain PyTorch; returns one loss per user.

    The untied form has only layers that Opacus and fastDP support. Item 0 is padding on the right: it is not a class of
    the softmax, and no position with a target attends to it.
    """

    whole_rows = False  # Opacus, fastDP and Opake need whole rows of users; the untied form always has them

    def __init__(self, ids: int, length: int, dim: int, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ids, dim)
        nn.init.normal_(self.embedding.weight, std=0.1)
        if not tied:
            self.output = nn.Linear(dim, ids - 1, bias=False)
        self.tied = tied
        self.network = _PlacedByRow(dim, length, heads=1, blocks=2, feedforward=None, dropout=0.0)

    def forward(self, history: Tensor, targets: Tensor) -> Tensor:
        x = self.network(self.embedding(history))
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


class _PlacedByRow(CausalNetwork):
    def placed(self, x: Tensor) -> Tensor:
        # One row for each user, because Opacus assumes that the first dimension of every input is the users.
        places = torch.arange(x.shape[1]).repeat(len(x), 1)
        placed: Tensor = x + self.scale * self.positions(places)  # (B, T, d)
        return placed


class System(ABC):
    """Trains a Transformer, one step on one batch of users at a time.

    A private system says how it scales a user's gradient and has a plain twin of its model. The check uses them to
    compute the same clipped sum independently.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    tied: ClassVar[bool] = True

    def __init__(self, ids: int, length: int, users: int, dim: int, noise_multiplier: float = NOISE) -> None:
        self.ids, self.length, self.users, self.dim, self.noise_multiplier = ids, length, users, dim, noise_multiplier
        torch.manual_seed(0)
        self.build()

    @abstractmethod
    def build(self) -> None:
        """Make `model` and its optimizer; raise `CannotRun` with the reason if that is impossible."""

    @abstractmethod
    def step(self, batch: Sequence[SequenceBatch]) -> None:
        """Forward, backward, clipping, noise and the optimizer's step; leaves the gradient it used in `.grad`."""

    model: nn.Module  # whose parameters are trained

    def twin(self) -> PlainTransformer:
        """A plain model with the same weights and parameter names."""
        twin = PlainTransformer(self.ids, self.length, self.dim, self.tied)
        twin.load_state_dict(self.by_name({name: p.detach() for name, p in self.model.named_parameters()}))
        return twin

    def gradients(self) -> dict[str, Tensor]:
        """The gradient that the last step used, under the twin's names."""
        return self.by_name({name: p.grad for name, p in self.model.named_parameters() if p.grad is not None})

    def by_name(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Parameters or gradients of `model`, under the twin's names."""
        return values

    def scale(self, norm: Tensor) -> Tensor:
        """The factor a user's gradient of this norm is clipped by: 1 for a system that does not clip."""
        return torch.ones_like(norm)


class DprecPlain(System):
    """The model of this package, as `dprec.fit` trains it without privacy."""

    name = "dprec non-private"
    private = False

    def build(self) -> None:
        self.model: Transformer = Transformer(self.ids, self.dim, dropout=0.0, tied=self.tied, max_length=self.length)
        self.parameters, self.optimizer = dict(self.model.named_parameters()), adam(self.model)

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        self.optimizer.zero_grad()
        mean_loss(self.parameters, self.model.losses, batch).backward()
        self.optimizer.step()


class DprecPrivate(DprecPlain):
    name = "dprec private"
    private = True

    def build(self) -> None:
        super().build()
        self.clipping = Clipping("auto-v")
        noise = StepNoise(GaussianNoise(), self.noise_multiplier, self.users)
        padding = padding_rows(self.model)
        self.gradient = PrivateGradient(self.clipping, noise, padding, cores=cores_for(self.model))

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        self.gradient(self.parameters, self.model.losses, batch)
        self.optimizer.step()

    def scale(self, norm: Tensor) -> Tensor:
        return self.clipping.scale(norm)


class DprecUntied(DprecPrivate):
    """The model that Opacus and fastDP train."""

    name = "dprec private, untied"
    tied = False

    def by_name(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return values | {"output.weight": values["output.weight"][1:]}  # the twin's has no row for the padding


SEED = 11


@dataclass(frozen=True)
class Shape:
    """A catalogue and users whose history lengths are log-normal, cut to [shortest, longest].

    >>> shape = Shape("small", items=50, users=6, tokens=40, median=5, spread=1.0, shortest=2, longest=20)
    >>> [tuple(part.history.shape) for part in shape.micro_batches()]
    [(2, 20), (2, 20), (2, 20)]
    """

    name: str
    items: int  # without the padding
    users: int  # in one step
    tokens: int  # budget of a micro-batch: users x longest history
    median: float
    spread: float
    shortest: int
    longest: int

    @property
    def ids(self) -> int:
        """Item ids, the padding included."""
        return self.items + 1

    def lengths(self) -> np.ndarray:
        drawn = np.random.default_rng(SEED).lognormal(np.log(self.median), self.spread, self.users)
        return np.clip(drawn.round().astype(np.int64), self.shortest, self.longest)

    def micro_batches(self) -> list[SequenceBatch]:
        """One step's users in dprec's micro-batches, longest first; every system gets the same."""
        return self._batches(self.lengths(), self.tokens)

    def check_batch(self) -> SequenceBatch:
        """A few users with histories of very different length."""
        middle = int(np.median(self.lengths()))
        lengths = np.array([self.longest, middle, self.shortest, 1])
        return self._batches(lengths, len(lengths) * self.longest)[0]

    def _batches(self, lengths: np.ndarray, tokens: int) -> list[SequenceBatch]:
        starts = np.concatenate([[0], np.cumsum(lengths + 1)[:-1]])
        items = self._items(int((lengths + 1).sum()))
        groups = Buckets(len(lengths), self.longest).groups(lengths, tokens)
        return [
            SequenceBatch(*(padded(items, first[rows], lengths[rows], width).long() for first in (starts, starts + 1)))
            for rows, width in groups
        ]

    def _items(self, count: int) -> np.ndarray:
        """Item ids with a popularity as uneven as in logs."""
        chance = 1 / (np.arange(self.items) + 0.02 * self.items + 1)
        return 1 + np.random.default_rng(SEED + 1).choice(self.items, size=count, p=chance / chance.sum())
