"""How a batch of users becomes the gradient that the optimizer sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class GradientRule(Protocol):
    """Fills the parameters' `.grad` from one batch of users, given in micro-batches."""

    def __call__(
        self, parameters: Mapping[str, nn.Parameter], losses: Callable[[Any], Tensor], batch: Sequence[Any]
    ) -> float | None:
        """Return the mean loss of the batch's users, None for an empty batch."""


class MeanGradient:
    """The gradient of the users' mean loss: training without privacy."""

    def __call__(
        self, parameters: Mapping[str, nn.Parameter], losses: Callable[[Any], Tensor], batch: Sequence[Any]
    ) -> float | None:
        users = sum(len(part) for part in batch)
        for parameter in parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.zero_()
        total = 0.0
        for part in batch:
            loss = losses(part).sum() / users
            loss.backward()
            total += float(loss.detach())
        return total if users else None
