"""Independent truth for per-user gradients: torch.func on one user at a time, with the plain softmax and plain bags.

Where vmap has no rule for what torch does, as for its recurrent layers: one plain backward pass for each user.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from dprec.gradients.uses.batches import batch_tensors
from dprec_kernels import reference


class _LossOfOne(nn.Module):
    def __init__(self, model: Any, kind: type) -> None:
        super().__init__()
        self.model = model
        self.kind = kind

    def forward(self, *of_one: Tensor) -> Tensor:
        return self.model.losses(self.kind(*(tensor.unsqueeze(0) for tensor in of_one))).squeeze(0)


def user_gradients(model: Any, batch: Any) -> dict[str, Tensor]:
    """Return every parameter's gradients (B, *shape), one user at a time."""
    module = _LossOfOne(model, type(batch))
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters: dict[str, Tensor], *of_one: Tensor) -> Tensor:
        return torch.func.functional_call(module, parameters, of_one)

    with (
        mock.patch("dprec.models.base.catalogue_softmax", reference.catalogue_softmax),
        mock.patch("tests.zoo.recommenders.catalogue_softmax", reference.catalogue_softmax),
        mock.patch("torch.nn.functional.embedding_bag", plain_bag),
    ):
        if any(isinstance(part, (nn.RNNBase, nn.RNNCellBase)) for part in module.modules()):
            return _one_by_one(model, batch)
        tensors = batch_tensors(batch)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, *(0 for _ in tensors)))
        gradients = each(parameters, *tensors)
    return {name.removeprefix("model."): gradient.detach() for name, gradient in gradients.items()}


def _one_by_one(model: Any, batch: Any) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    trained = [p for p in parameters.values() if p.requires_grad]
    gradients = {name: torch.zeros(len(batch), *p.shape, dtype=p.dtype) for name, p in parameters.items()}
    found = {name: gradients[name] for name, p in parameters.items() if p.requires_grad}
    for user in range(len(batch)):
        alone = type(batch)(*(tensor[user : user + 1] for tensor in batch_tensors(batch)))
        loss = model.losses(alone).sum()
        own = torch.autograd.grad(loss, trained, allow_unused=True, materialize_grads=True)
        for rows, gradient in zip(found.values(), own, strict=True):
            rows[user] = gradient
    return gradients


def plain_bag(
    ids: Tensor,
    weight: Tensor,
    offsets: None = None,
    max_norm: None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """Sums and means of bags, written out: torch.func does not know torch's."""
    real = torch.ones_like(ids) if padding_idx is None else (ids != padding_idx % len(weight)).to(ids.dtype)
    rows = weight[ids] * real.unsqueeze(-1)  # (bags, P, d)
    return rows.sum(1) if mode == "sum" else rows.sum(1) / real.sum(1, keepdim=True).clamp(min=1)


def norms(gradients: dict[str, Tensor]) -> Tensor:
    """Return each user's gradient norm (B,) over all parameters, in float64."""
    return sum(g.double().reshape(len(g), -1).square().sum(1) for g in gradients.values()).sqrt()  # type: ignore[union-attr]


def weighted_sum(gradients: dict[str, Tensor], scale: Tensor) -> dict[str, Tensor]:
    return {name: torch.tensordot(scale.double(), g.double(), dims=1) for name, g in gradients.items()}
