"""Gradients of a bias or a normalisation: sums over a user's positions, which GPU kernels compute with the norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dprec.gradients.contributions.base import Contribution, Line, SquaredNorms, zeroed
from dprec.gradients.contributions.building import square
from dprec.gradients.contributions.dense import Dense
from dprec_kernels.joint import Positions
from dprec_kernels.paths import on_gpu
from dprec_kernels.wide_sum import lengths


@dataclass
class OverPositions(Contribution):
    """Σ_t values_t, or Σ_t values_t · factors_t number by number."""

    values: Tensor  # (B, T, *shape)
    factors: Tensor | None = None  # (B, T, *shape)

    def materialise(self, out: Tensor, users: slice) -> None:
        own = OverPositions(self.values[users], None if self.factors is None else self.factors[users])
        out += own.summed().values

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        self.summed().add_to(total, weight)

    def forget(self, lost: Tensor) -> None:
        self.values = zeroed(self.values, lost)
        if self.factors is not None:
            self.factors = zeroed(self.factors, lost)

    def terms(self) -> Tensor:
        return lengths(self._all().flatten(2)).sum(1)

    def lines(self) -> Line | None:
        given = self.numbers()
        return Positions(*(each.flatten(2) for each in given)) if all(e.dtype == torch.float32 for e in given) else None

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        return None if others else lambda: square(self._all().sum(1, dtype=torch.float64))

    def at_rows(self, ids: Tensor, users: int) -> Contribution | None:
        return self.summed().at_rows(ids, users)

    def summed(self) -> Dense:
        return Dense(self._all().sum(1))

    def _all(self) -> Tensor:
        return self.values if self.factors is None else self.values * self.factors


def over_positions(values: Tensor, factors: Tensor | None = None) -> Contribution:
    """Return the contribution Σ_t values_t · factors_t.

    On a CPU it is summed here; GPU kernels sum it when they compute its norm.
    """
    if on_gpu(values):
        return OverPositions(values, factors)
    return Dense((values if factors is None else values * factors).sum(1))
