"""The interface of the compared systems, and the two systems of dprec."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from dprec.benchmarks.peers.architectures import ARCHITECTURES, TRANSFORMER
from dprec.benchmarks.peers.plain import PlainModel
from dprec.data import SequenceBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows
from dprec.models.learning.descent import Gradient, MeanGradient
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.cores import cores_for
from dprec.privacy.step import PrivateGradient

NOISE = 1.0


def adam(module: nn.Module) -> torch.optim.Adam:
    """The optimizer of every system."""
    return torch.optim.Adam(module.parameters(), lr=1e-3, weight_decay=1e-5)


class CannotRun(Exception):
    """The reason why a system has no number."""


class System(ABC):
    """Trains one of `ARCHITECTURES`, one step on one batch of users at a time.

    A private system says how it scales a user's gradient and has a plain twin of its model. The check uses them to
    compute the same clipped sum independently.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    tied: ClassVar[bool] = True

    def __init__(
        self,
        ids: int,
        length: int,
        users: int,
        dim: int,
        noise_multiplier: float = NOISE,
        architecture: str = TRANSFORMER,
    ) -> None:
        self.ids, self.length, self.users, self.dim, self.noise_multiplier = ids, length, users, dim, noise_multiplier
        self.architecture = ARCHITECTURES[architecture]
        torch.manual_seed(0)
        self.build()

    @abstractmethod
    def build(self) -> None:
        """Make the model and its optimizer; raise `CannotRun` with the reason if that is impossible."""

    @abstractmethod
    def step(self, batch: Sequence[SequenceBatch]) -> None:
        """Forward, backward, clipping, noise and the optimizer's step; leaves the gradient it used in `.grad`."""

    @property
    @abstractmethod
    def model(self) -> nn.Module:
        """The module whose parameters are trained."""

    def twin(self) -> PlainModel:
        """A plain model with the same weights and parameter names."""
        twin = self.architecture.plain(self.ids, self.length, self.dim, self.tied)
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


class Dprec(System):
    """The model and the gradient rules of this package, as `dprec.fit` uses them."""

    gradient: Gradient

    def build(self) -> None:
        self.recommender = self.architecture.recommender(self.ids, self.length, self.dim, self.tied)
        self.parameters = dict(self.recommender.named_parameters())
        self.optimizer = adam(self.recommender)

    @property
    def model(self) -> nn.Module:
        return self.recommender

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        self.gradient(self.parameters, self.recommender.losses, batch)
        self.optimizer.step()


class DprecPlain(Dprec):
    name = "dprec non-private"
    private = False

    def build(self) -> None:
        super().build()
        self.gradient = MeanGradient()


class DprecPrivate(Dprec):
    name = "dprec private"

    def build(self) -> None:
        super().build()
        self.clipping = Clipping("auto-v")
        self.gradient = PrivateGradient(
            self.clipping,
            StepNoise(GaussianNoise(), self.noise_multiplier, self.users),
            padding_rows(self.recommender),
            cores=cores_for(self.recommender),
        )

    def scale(self, norm: Tensor) -> Tensor:
        return self.clipping.scale(norm)


class DprecUntied(DprecPrivate):
    """The model that Opacus and fastDP train."""

    name = "dprec private, untied"
    tied = False

    def by_name(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        return values | {"output.weight": values["output.weight"][1:]}  # the twin's has no row for the padding
