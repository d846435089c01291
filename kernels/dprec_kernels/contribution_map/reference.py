"""The plain truth: the map in full, one float64 for every row."""

from __future__ import annotations

import torch
from torch import Tensor


def contributions(users: list[Tensor], size: int, clip: float) -> Tensor:
    """Return (size,) the sum of the users' vectors of zeros and ones, each scaled down to L2 norm `clip`."""
    total = torch.zeros(size, dtype=torch.float64)
    for rows in users:
        vector = torch.zeros(size, dtype=torch.float64)
        vector[rows] = 1.0
        total += vector * min(1.0, clip / max(1.0, float(vector.norm())))
    return total


def contribution_map(
    users: list[Tensor], size: int, clip: float, noise_multiplier: float, threshold: float, generator: torch.Generator
) -> Tensor:
    """Return the sorted rows that survive."""
    noisy = contributions(users, size, clip)
    noisy += noise_multiplier * clip * torch.randn(size, dtype=torch.float64, generator=generator)
    return (noisy >= threshold).nonzero().squeeze(1)
