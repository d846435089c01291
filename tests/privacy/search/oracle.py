"""What a user's share should be: plain autograd in float64, one user alone, nothing of the engine."""

from __future__ import annotations

import copy
from unittest import mock

import torch
from torch import Tensor, nn

from dprec.gradients.parameters import padding_rows
from dprec_kernels.catalogue_softmax import reference
from tests import truth
from tests.privacy.search.model import Assembled
from tests.privacy.search.readouts import Readout
from tests.privacy.search.users import Users

Sums = dict[str, Tensor]
STABILITY = 1e-2  # of auto-s, as docs/privacy.md states it
SMALLEST = 1e-6  # norms below are not scaled up to the bound by auto-v


def exact(model: Assembled) -> Assembled:
    """Return the model in float64, with the softmax over the catalogue written out."""
    twin = copy.deepcopy(model).double()
    for part in twin.modules():
        if isinstance(part, Readout):
            part.softmax = reference.catalogue_softmax
    return twin


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def gradient(twin: Assembled, alone: Users, create_graph: bool = False) -> Sums:
    """Return the gradient of one user, given alone, with a zero for every parameter that the user does not reach."""
    parameters = trained(twin)
    with mock.patch("torch.nn.functional.embedding_bag", truth.plain_bag):
        loss = twin.losses(alone).sum()
    if not loss.requires_grad:
        return {name: torch.zeros_like(p) for name, p in parameters.items()}
    found = torch.autograd.grad(
        loss, list(parameters.values()), allow_unused=True, materialize_grads=True, create_graph=create_graph
    )
    return dict(zip(parameters, found, strict=True))


def norm(sums: Sums) -> float:
    return float(sum(float(total.double().square().sum()) for total in sums.values()) ** 0.5)


def difference(one: Sums, other: Sums) -> Sums:
    return {name: one[name] - other[name] for name in one}


def share(model: nn.Module, of: Sums, mode: str, bound: float) -> Sums:
    """Return a gradient as it is to be clipped; padding rows, which count, are not released."""
    size = norm(of)
    if size == 0:
        return of
    factor = {
        "flat": min(1.0, bound / size),
        "auto-v": bound / max(size, SMALLEST),
        "auto-s": bound / (size + STABILITY),
    }[mode]
    clipped = {name: factor * g for name, g in of.items()}
    for name, rows in padding_rows(model).items():
        clipped[name][list(rows)] = 0.0
    return clipped
