"""Independent truth for per-user gradients: torch.func on one user at a time, with the plain softmax."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec_kernels.catalogue_softmax import reference


class _LossOfOne(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, history: Tensor, targets: Tensor) -> Tensor:
        return self.model.losses(SequenceBatch(history.unsqueeze(0), targets.unsqueeze(0))).squeeze(0)


def user_gradients(model: Any, batch: SequenceBatch) -> dict[str, Tensor]:
    """Return every parameter's gradients (B, *shape), one user at a time by vmap(grad)."""
    module = _LossOfOne(model)
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], history: Tensor, targets: Tensor) -> Tensor:
        return torch.func.functional_call(module, parameters, (history, targets))

    with (
        mock.patch("dprec.models.base.catalogue_softmax", reference.catalogue_softmax),
        mock.patch("tests.models.zoo.catalogue_softmax", reference.catalogue_softmax),
    ):
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        gradients = each(parameters, batch.history, batch.targets)
    return {name.removeprefix("model."): gradient.detach() for name, gradient in gradients.items()}


def norms(gradients: dict[str, Tensor]) -> Tensor:
    """Return each user's gradient norm (B,) over all parameters, in float64."""
    return sum(g.double().reshape(len(g), -1).square().sum(1) for g in gradients.values()).sqrt()  # type: ignore[union-attr]


def weighted_sum(gradients: dict[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
    return {name: torch.tensordot(scale.double(), g.double(), dims=1) for name, g in gradients.items()}
