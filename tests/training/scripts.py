"""A model that sorts users, and its private training from a plain script."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dprec import private
from dprec.training.script import Training

USERS, BATCH = 60, 12


class Sorter(nn.Module):
    """Which of three kinds a user is, by four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)


def people() -> TensorDataset:
    return TensorDataset(torch.randn(USERS, 4), torch.randint(3, (USERS,)))


def training(module: nn.Module | None = None, users: Any = None, **options: Any) -> Training:
    module = module or Sorter()
    optimizer = options.pop("optimizer", None) or torch.optim.SGD(module.parameters(), lr=0.1)

    def losses(batch: Any) -> Tensor:
        x, kind = batch
        return F.cross_entropy(module(x), kind, reduction="none")

    usual = {"losses": losses, "epsilon": 8, "expected_batch": BATCH, "epochs": 2}
    return private(module, optimizer, users or people(), **{**usual, **options})


def descending(module: nn.Module, users: Any, losses: Any, steps: int, rate: float = 0.5, **options: Any) -> Training:
    """So many steps of plain descent by a noise multiplier of 1."""
    sgd = torch.optim.SGD(module.parameters(), lr=rate)
    return private(module, sgd, users, losses=losses, steps=steps, **{"noise_multiplier": 1.0, **options})


def take(run: Training) -> Training:
    """Take all steps that are left."""
    for batch in run:
        run.step(batch)
    return run
