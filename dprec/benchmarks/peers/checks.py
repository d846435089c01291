"""Checks each private step against one backward pass per user; a system that clips wrongly gets no number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dprec.benchmarks.peers.systems import CannotRun, System
from dprec.data import SequenceBatch

TOLERANCE = 1e-4  # of the clipped sum's norm; float32 leaves about 1e-6


def clip_error(kind: type[System], ids: int, length: int, batch: SequenceBatch, dim: int, architecture: str) -> float:
    """Return the error of the system's clipped sum; raise `CannotRun` if it is too large."""
    system = kind(ids, length, users=len(batch), dim=dim, noise_multiplier=0.0, architecture=architecture)
    expected = clipped_sum(system, batch)
    middle = len(batch) // 2  # two micro-batches, because a step has several
    system.step([batch.select(range(middle)), batch.select(range(middle, len(batch)))])
    found = system.gradients()
    wrong = sum(_off(found.get(name), expected[name], len(batch)) for name in expected)
    total = float(torch.stack([g.square().sum() for g in expected.values()]).sum().sqrt())
    error = wrong**0.5 / total
    if not error <= TOLERANCE:  # also if it is NaN
        raise CannotRun(f"clips wrongly: its clipped sum is off by {error:.2%}, so no number is given")
    return error


def clipped_sum(system: System, batch: SequenceBatch) -> dict[str, Tensor]:
    """Σ_u scale(‖g_u‖) g_u in float64, by one plain backward pass for each user."""
    twin = system.twin().double()
    parameters = dict(twin.named_parameters())
    total = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
    for one in _users(batch):
        loss = twin(one.history, one.targets).sum()
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        for name, gradient in zip(parameters, gradients, strict=True):
            total[name] += system.scale(norm) * gradient
    return total


def _users(batch: SequenceBatch) -> Sequence[SequenceBatch]:
    return [batch.select([user]) for user in range(len(batch))]


def _off(found: Tensor | None, expected: Tensor, users: int) -> float:
    difference = expected if found is None else found.double() * users - expected
    return float(difference.square().sum())
