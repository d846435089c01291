"""The object that a model trains through; the `Privacy` callback replaces it by the private one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from dprec.accounting.release import ExactSums
from dprec.contract import Losses
from dprec.distributed.ranks import ALONE, Ranks


class Gradient(Protocol):
    """Fills the parameters' `.grad` from one batch of users, given in micro-batches."""

    def __call__(self, parameters: Mapping[str, nn.Parameter], losses: Losses, batch: Sequence[Any]) -> float | None:
        """Return the mean loss of the batch's users, None for an empty batch."""


class Descent(Protocol):
    """Everything that a model's training gets from outside of the model."""

    @property
    def gradient(self) -> Gradient:
        """Makes each step's gradient."""

    @property
    def sums(self) -> ExactSums:
        """Computes the sums over all data that a model asks for before training."""

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise in each entry of a step's gradient."""

    def steps(self, planned: int) -> int:
        """Return the number of steps after which the run stops, at most the planned one."""


class MeanGradient:
    """The gradient of the users' mean loss, over those of all processes: training without privacy."""

    def __init__(self, ranks: Ranks = ALONE) -> None:
        self._ranks = ranks

    def __call__(self, parameters: Mapping[str, nn.Parameter], losses: Losses, batch: Sequence[Any]) -> float | None:
        users = self._ranks.total(sum(len(part) for part in batch))
        for parameter in parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.zero_()
        total = torch.zeros((), dtype=torch.float64)
        for part in batch:
            loss = losses(part).sum() / users
            loss.backward()
            total += float(loss.detach())
        self._ranks.sum_all_([p.grad for p in parameters.values() if p.grad is not None])
        self._ranks.sum_(total)
        return float(total) if users else None


@dataclass(frozen=True)
class PlainDescent:
    """Training without privacy."""

    gradient: Gradient = field(default_factory=MeanGradient)
    sums: ExactSums = field(default_factory=ExactSums)
    noise_std: float = 0.0

    def steps(self, planned: int) -> int:
        return planned
