"""The kind of strategy that says when rows get their noise: at their steps, but not through the gradient."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from dprec.errors import UserError
from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity.rows.strategy import Strategy
from dprec.sparsity.rows.tables import RowSpace, Table


@dataclass(frozen=True)
class Rates:
    """The settings of SGD in one step."""

    rate: float  # η
    decay: float = 0.0  # λ
    momentum: float = 0.0  # μ


def rates_of(group: Mapping[str, Any]) -> Rates:
    """Return those of an optimizer's group as numbers: in a tensor a scheduler would change past steps', too."""
    return Rates(float(group["lr"]), float(group["weight_decay"]), float(group.get("momentum", 0.0)))


Move: TypeAlias = tuple[Table, Tensor, Tensor]  # a table, the rows that a step's gradient has, and its values


class NoiseSchedule(Strategy, ABC):
    """Takes the steps of its tables by itself, and gives every row its noise. A subclass writes `step`.

    One that leaves rows without noise after a step writes `read` and `settle` too. It rules its tables alone.
    """

    farthest: float = math.inf  # that one user's share moves a table at a rate of 1, once a run has begun

    @property
    def owes(self) -> bool:
        """Whether rows may lack noise between steps: where `settle` has anything to do."""
        return type(self).settle is not NoiseSchedule.settle

    def begin(self, space: RowSpace, sigma: float, std: float, noise: GaussianNoise) -> None:
        super().begin(space, sigma, std, noise)
        for table in space:
            if table.parameter.dtype not in (torch.float32, torch.float64):
                kind = str(table.parameter.dtype).removeprefix("torch.")
                raise UserError(
                    f"{type(self).__name__} adds noise to tables of float32, and '{table.name}' is {kind}: set "
                    "trainer.precision bf16-mixed, which leaves tables as they are"
                )

    def bind(self, optimizer: Optimizer, step: int) -> None:
        """Learn how tables are updated, before the first step of this process, which is the run's step `step`.

        One that knows more than plain SGD writes its own.
        """
        if not isinstance(optimizer, SGD) or any(group["momentum"] for group in optimizer.param_groups):
            name = type(self).__name__
            raise UserError(f"{name} needs SGD without momentum (model.optimizer sgd): set it, or leave {name} out")

    def taken_at(self, name: str, rates: Rates) -> Rates:
        """Return the rates at which a table takes a step that the optimizer takes at these."""
        return rates

    @abstractmethod
    def step(self, table: Table, rows: Tensor, values: Tensor, rates: Rates) -> None:
        """Apply a step's gradient, which is `values` in these rows and has no noise yet, and noise to all rows.

        The values are divided by the expected batch already, and `self.std` is the standard deviation of the noise
        beside them. Padding rows are put back afterwards; `read` and `settle` leave those of `table.padding` alone.
        """

    def step_all(self, moves: Sequence[Move], rates: Rates) -> None:
        """Do so for several tables: one after the other, where a strategy knows no faster way."""
        for table, rows, values in moves:
            self.step(table, rows, values, rates)

    def read(self, name: str, ids: Tensor | None) -> None:
        """Hear that rows of a table are about to be read; None stands for all of them."""

    def read_all(self, reads: Mapping[str, Tensor | None]) -> None:
        """Hear so of several tables: of one after the other, where a strategy knows no faster way."""
        for name, ids in reads.items():
            self.read(name, ids)

    def written(self, name: str) -> object:
        """Return what stays as it is while nobody but this strategy writes to a table; None where it cannot tell."""
        return None

    def settle(self) -> None:
        """Give all rows the noise that they lack: somebody is about to see the weights."""
