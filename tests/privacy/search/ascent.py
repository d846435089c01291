"""Weights and data made worse on purpose, beyond what chance finds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tests.privacy.search import oracle
from tests.privacy.search.model import Assembled
from tests.privacy.search.users import Users

STEPS = 8


def cancel(model: Assembled, batch: Users, user: int) -> None:
    """Move weights and the users' features down the gradient of one user's log norm.

    Exactly computed, no share is larger than the bound, so the way up leads through rounding: clipping divides by the
    norm, and a small norm of large terms is where rounding counts.
    """
    twin = oracle.exact(model)
    parameters = [p for p in twin.parameters() if p.numel()]
    alone = batch.select([user]).to(torch.float64)
    alone.features = alone.features.clone().requires_grad_()
    leaves = [*(p.requires_grad_() for p in parameters), alone.features]
    for _ in range(STEPS):
        found = oracle.gradient(twin, alone, create_graph=True)
        size = sum((g.square().sum() for g in found.values()), torch.zeros((), dtype=torch.float64))
        if not 1e-20 < float(size.detach()) < float("inf") or not size.requires_grad:
            break
        slopes = torch.autograd.grad(size.log(), leaves, allow_unused=True, materialize_grads=True)
        steep = sum(float(s.square().sum()) for s in slopes)
        if not 0 < steep < float("inf"):
            break
        with torch.no_grad():  # Newton's step to where the logarithm is two lower, no longer than the weights
            for leaf, slope in zip(leaves, slopes, strict=True):
                step = slope * (2.0 / steep)
                leaf -= step * (leaf.norm() / step.norm().clamp(min=1e-30)).clamp(max=1.0)
    length = alone.features.shape[1]
    with torch.no_grad():
        for mine, theirs in zip((p for p in model.parameters() if p.numel()), parameters, strict=True):
            mine.copy_(theirs)
        batch.features[user, :length] = alone.features[0].to(batch.features.dtype)


def climb(model: Assembled, batch: Users, moved: Callable[[], float]) -> None:
    """Walk up the slope of `moved()`, how far a user moves the sum.

    The engine has no derivative, and its rounding none either: the slope is that along a random direction of all
    weights and features at once, from one evaluation on each side.
    """
    leaves: list[Tensor] = [p.data for p in model.parameters() if p.numel()] + [batch.features]
    size, here = 0.3, moved()
    for _ in range(STEPS // 3):
        steps = [size * leaf.abs().mean() * torch.randn_like(leaf) for leaf in leaves]
        before = [leaf.clone() for leaf in leaves]
        best, tried = here, 0.0
        for sign in (1.0, -1.0):
            for leaf, old, step in zip(leaves, before, steps, strict=True):
                leaf.copy_(old + sign * step)
            there = moved()
            if there > best:
                best, tried = there, sign
        for leaf, old, step in zip(leaves, before, steps, strict=True):
            leaf.copy_(old + tried * step)
        size, here = (size, best) if tried else (size / 3, here)
