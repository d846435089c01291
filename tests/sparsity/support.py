"""Two tables and a linear layer, trained privately without a trainer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.special import ndtri

from dprec import Privacy
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows
from dprec.models.learning.optimizers import SGD
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity.rows.kinds import Strategy
from dprec.sparsity.rows.table_strategies import TableStrategies

ROWS, OTHERS, DIM, EXPECTED = 24, 10, 16, 4


@dataclass
class Bags:
    """Users with a bag of ids in one table and one id in another; 0 is padding in the first."""

    bags: Tensor  # (B, P)
    ids: Tensor  # (B,)

    def __len__(self) -> int:
        return len(self.ids)


class Served:
    """The users of a data set that makes micro-batches of any of them by itself."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def of(self, users: Sequence[int]) -> list[Any]:
        parts: list[Any] = self.data.__getitems__(list(users))
        return parts


class TwoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.big = nn.EmbeddingBag(ROWS, DIM, mode="sum", padding_idx=0)
        self.small = nn.Embedding(OTHERS, 2 * DIM)
        self.out = nn.Linear(3 * DIM, 1)

    def losses(self, batch: Bags) -> Tensor:
        both = torch.cat([self.big(batch.bags), self.small(batch.ids)], 1)
        return torch.nn.functional.softplus(self.out(both)).squeeze(1)

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        return dict(self.named_parameters())


def users(count: int, seed: int, most: int = ROWS) -> Bags:
    """Overlapping bags with repeats and padding."""
    generator = torch.Generator().manual_seed(seed)
    return Bags(
        torch.randint(0, most, (count, 5), generator=generator), torch.randint(0, OTHERS, (count,), generator=generator)
    )


def some(batch: Bags, chosen: Any) -> Bags:
    return Bags(batch.bags[chosen], batch.ids[chosen])


class Run:
    """A private run, one step at a time."""

    def __init__(
        self,
        strategies: Sequence[Strategy],
        sigma: float = 1.0,
        noise: Any = None,
        clipping: Clipping | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = SGD,
        device: torch.device | str = "cpu",
        **options: Any,
    ) -> None:
        self.module, self.strategies = TwoTables().to(device), TableStrategies(strategies)
        self.noise = GaussianNoise(3) if noise is None else noise
        self.clipping = clipping or Clipping()
        self.optimizer = optimizer(self.module.parameters(), **{"lr": 0.5} | options)
        step_noise = StepNoise(self.noise, sigma, EXPECTED)
        self.strategies.begin(self.module, self.module.trained, step_noise, self.clipping.max_norm)
        self.strategies.guard(self.module, self.optimizer, 0)
        self.gradient = PrivateGradient(self.clipping, step_noise, padding_rows(self.module), self.strategies)

    def fill(self, *parts: Bags) -> dict[str, Tensor]:
        """Return the gradients of one step, whole."""
        self.gradient(self.module.trained, self.module.losses, parts)
        made = {name: p.grad for name, p in self.module.trained.items() if p.grad is not None}
        return {name: gradient.to_dense() for name, gradient in (made | self.strategies.held).items()}

    def step(self, *parts: Bags, **rates: float) -> None:
        for name, value in rates.items():
            self.optimizer.param_groups[0][name] = value
        self.fill(*parts)
        self.strategies.update(self.optimizer)
        self.optimizer.step()

    def weights(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.module.state_dict().items()}


def gaussian_cost(epsilon: float) -> float:
    """Return μ = -2 Φ⁻¹(1 / (1 + e^ε)): the inverse of `pure_epsilon`."""
    return -2 * float(ndtri(torch.tensor(1 / (1 + math.exp(epsilon)), dtype=torch.float64)))


def own_multiplier(trainer: Any) -> float:
    """Return the noise multiplier of gradients alone, beside that of choices of rows."""
    privacy = next(each for each in trainer.callbacks if isinstance(each, Privacy))
    gradient = privacy._steps._gradient
    return float(gradient.step_noise.multiplier * gradient.strategies.gradient_noise_factor)


def dense_law(rates: list[tuple[float, float, float]], std: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean factors and covariance of (w, m) after these steps, one step at a time."""
    mean, cov = np.eye(2), np.zeros((2, 2))
    for rate, decay, momentum in rates:
        matrix = np.array([[1 - rate * decay, -rate * momentum], [decay, momentum]])
        noise = std * np.array([[-rate], [1.0]])
        mean, cov = matrix @ mean, matrix @ cov @ matrix.T + noise @ noise.T
    return mean, cov
