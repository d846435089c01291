"""Weights and data at the edge of their precision: what rounding does to an engine shows there first."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.privacy.search.layers import LowRank
from tests.privacy.search.users import Users

Extreme = Callable[[nn.Module, Users, random.Random], None]


def _large(model: nn.Module, batch: Users, rng: random.Random) -> None:
    """All weights, or one, far from 1."""
    parameters = list(model.parameters())
    for parameter in parameters if rng.random() < 0.5 else [rng.choice(parameters)]:
        parameter.mul_(10 ** rng.choice((-6, -3, -1, 1, 2, 3, 5)))


def _loud(model: nn.Module, batch: Users, rng: random.Random) -> None:
    """Losses far from 1."""
    model.loudness = 10.0 ** rng.choice((-12, -6, -3, 3, 6, 12))  # type: ignore[assignment]


def _one_direction(model: nn.Module, batch: Users, rng: random.Random) -> None:
    """Tables and biases far along one direction, with either sign: scores that are large and all alike."""
    size, against = 10 ** rng.choice((0.5, 1, 1.5, 2)), rng.random() < 0.5
    for parameter in model.parameters():
        table = parameter.dim() == 2 and parameter.shape[0] > 1
        sign = (1 if table else -1) if against else rng.choice((-1, 0, 1))
        if parameter.dim() == 0 or (against and parameter.dim() == 2 and not _is_table(model, parameter)):
            continue
        direction = torch.nn.functional.normalize(torch.ones(parameter.shape[-1]), dim=0)
        (parameter[1:] if table and rng.random() < 0.5 else parameter).add_(sign * size * direction)


def _is_table(model: nn.Module, parameter: nn.Parameter) -> bool:
    return any(isinstance(part, nn.Embedding) and part.weight is parameter for part in model.modules())


def _rows_alike(model: nn.Module, batch: Users, rng: random.Random) -> None:
    """Rows of a table that are large and nearly the same."""
    size, spread = 10 ** rng.choice((0, 1, 2, 3)), 10.0 ** -rng.randint(1, 6)
    for parameter in model.parameters():
        if parameter.dim() == 2 and rng.random() < 0.7:
            parameter.copy_(size * (parameter[:1] + spread * torch.randn(parameter.shape)))


def _perpendicular(model: nn.Module, batch: Users, rng: random.Random) -> None:
    """Features that a low-rank weight does not see: what is left of a gradient is rounding."""
    narrow = [part.down for part in model.modules() if isinstance(part, LowRank)]
    for down in narrow[:1]:
        seen = torch.linalg.pinv(down.double()) @ down.double()
        kept = batch.features.double() - batch.features.double() @ seen.T
        batch.features.copy_(kept * 10 ** rng.choice((0, 0, 2, 4)))
    for part in model.modules():
        if isinstance(part, LowRank) and rng.random() < 0.7:
            part.down.requires_grad_(False)
            part.base.requires_grad_(False)


def _pairs(model: nn.Module, batch: Users, rng: random.Random) -> None:
    """Positions that nearly take each other back."""
    half, off = batch.history.shape[1] // 2, rng.choice((0.0, 1e-7, 1e-5, 1e-3))
    if not half:
        return
    for tensor in (batch.history, batch.targets):
        tensor[:, half : 2 * half] = tensor[:, :half].where(tensor[:, half : 2 * half] != 0, 0)
    copied = batch.features[:, :half]
    batch.features[:, half : 2 * half] = copied * (1 + off * torch.randn_like(copied))
    real = (batch.history != 0).float()
    batch.signs.copy_(real)
    batch.signs[:, half : 2 * half] *= -1


def _features_large(model: nn.Module, batch: Users, rng: random.Random) -> None:
    batch.features.mul_(10 ** rng.choice((-5, -2, 1, 2, 4, 6)))


def _features_along(model: nn.Module, batch: Users, rng: random.Random) -> None:
    """Features that are nearly the same everywhere: normalisation leaves rounding of them."""
    batch.features.mul_(10.0 ** -rng.randint(1, 6)).add_(rng.choice((1.0, 10.0, 1000.0)))


def _nearly_alike(model: nn.Module, batch: Users, rng: random.Random) -> None:
    """Users a little apart: their gradients add up, and round together."""
    first: Tensor = batch.features[:1].clone()
    batch.features.copy_(first * (1 + 10.0 ** -rng.randint(2, 7) * torch.randn_like(batch.features)))


def _sure(model: nn.Module, batch: Users, rng: random.Random) -> None:
    """Targets that the model is nearly certain of, over a table that may be frozen: a chance less 1 is rounding."""
    table = model.readout.scored(model.items)  # type: ignore[operator,union-attr]
    if table is None:
        return
    wanted, size, freeze = rng.choice((8, 12, 14, 16, 16.6, 17, 17.3, 20)), rng.choice((1, 1, 1e3)), rng.random() < 0.5
    table.weight.mul_(size)
    for _ in range(12):  # a tied table may change what it is multiplied with, too
        scores = model.encode(batch) @ table.weight.T  # type: ignore[operator]
        scores[..., 0] = -torch.inf
        best = scores.topk(2)
        batch.targets.copy_(best.indices[..., 0].where(batch.history != 0, 0))
        between = (best.values[..., 0] - best.values[..., 1])[batch.history != 0]
        if not len(between) or not 0 < float(between.median()) < torch.inf:
            return
        table.weight.mul_(float(wanted / between.median()) ** 0.5)
    if freeze and any(p.requires_grad for p in model.parameters() if p is not table.weight):
        table.weight.requires_grad_(False)


EXTREMES: dict[str, Extreme] = {
    "large": _large,
    "loud": _loud,
    "one direction": _one_direction,
    "rows alike": _rows_alike,
    "perpendicular": _perpendicular,
    "pairs": _pairs,
    "features large": _features_large,
    "features along": _features_along,
    "nearly alike": _nearly_alike,
    "sure": _sure,
}


@torch.no_grad()
def make_extreme(names: tuple[str, ...], model: nn.Module, batch: Users, rng: random.Random) -> None:
    """Change weights and users in place."""
    for name in names:
        EXTREMES[name](model, batch, rng)
    for part in model.modules():
        if isinstance(part, nn.Embedding) and part.padding_idx is not None:
            part.weight[part.padding_idx] = 0.0
