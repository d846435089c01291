"""Independent truth for per-user gradients: torch.func on one user at a time, with the plain softmax.

Where vmap has no rule for what torch does, as for its recurrent layers: one plain backward pass for each user.
"""

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
    """Return every parameter's gradients (B, *shape), one user at a time."""
    module = _LossOfOne(model)
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], history: Tensor, targets: Tensor) -> Tensor:
        return torch.func.functional_call(module, parameters, (history, targets))

    with (
        mock.patch("dprec.models.base.catalogue_softmax", reference.catalogue_softmax),
        mock.patch("tests.models.zoo.catalogue_softmax", reference.catalogue_softmax),
    ):
        if any(isinstance(part, (nn.RNNBase, nn.RNNCellBase)) for part in module.modules()):
            return _one_by_one(model, batch)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        gradients = each(parameters, batch.history, batch.targets)
    return {name.removeprefix("model."): gradient.detach() for name, gradient in gradients.items()}


def _one_by_one(model: Any, batch: SequenceBatch) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    trained = [p for p in parameters.values() if p.requires_grad]
    gradients = {name: torch.zeros(len(batch), *p.shape, dtype=p.dtype) for name, p in parameters.items()}
    found = {name: gradients[name] for name, p in parameters.items() if p.requires_grad}
    for user in range(len(batch)):
        loss = model.losses(SequenceBatch(batch.history[user : user + 1], batch.targets[user : user + 1])).sum()
        own = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        for rows, gradient in zip(found.values(), own, strict=True):
            rows[user] = gradient
    return gradients


def norms(gradients: dict[str, Tensor]) -> Tensor:
    """Return each user's gradient norm (B,) over all parameters, in float64."""
    return sum(g.double().reshape(len(g), -1).square().sum(1) for g in gradients.values()).sqrt()  # type: ignore[union-attr]


def weighted_sum(gradients: dict[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
    return {name: torch.tensordot(scale.double(), g.double(), dims=1) for name, g in gradients.items()}
