"""Gradients that are kept as they are: of everybody, or of a tensor whose rows belong to the users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dprec.gradients.contributions.base import Contribution, Line, SquaredNorms, zeroed
from dprec.gradients.contributions.building import square
from dprec.gradients.contributions.look_ups import Rows
from dprec_kernels.joint import Vectors
from dprec_kernels.wide_sum import add_product, add_rows


@dataclass
class Dense(Contribution):
    """Gradients that are small or have no structure: built as they are."""

    values: Tensor  # (B, *shape)

    def materialise(self, out: Tensor, users: slice) -> None:
        out += self.values[users]

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        add_rows(total, self.values, weight)

    def forget(self, lost: Tensor) -> None:
        self.values = zeroed(self.values, lost)

    def lines(self) -> Line | None:
        plain = self.values.dtype == torch.float32
        return Vectors(self.values.reshape(len(self.values), 1, -1)) if plain else None

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        return None if others else lambda: square(self.values)

    def at_rows(self, ids: Tensor, users: int) -> Contribution:
        own = ids.flatten().expand(users, -1)
        return Rows(own, self.values.reshape(*own.shape, *self.values.shape[1 + ids.ndim :]))


@dataclass
class Stacked(Contribution):
    """Gradients of several parameters of N numbers each, (n, N) in all, which are what is summed."""

    values: Tensor  # (n, B, N)

    def materialise(self, out: Tensor, users: slice) -> None:
        out += self.values[:, users].transpose(0, 1)

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        each = weight.view(1, -1, 1).expand(len(self.values), -1, 1)
        add_product(total.unsqueeze(1), each, self.values)

    def forget(self, lost: Tensor) -> None:
        self.values = zeroed(self.values, lost.expand(len(self.values), -1))

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        return None if others else lambda: square(self.values.flatten(0, 1)).view(len(self.values), -1).sum(0)


@dataclass
class Aligned(Contribution):
    """A tensor whose own rows belong to the users, `rows` each, in order: each user touches only those."""

    values: Tensor  # (B * rows, *rest)
    rows: int

    def materialise(self, out: Tensor, users: slice) -> None:
        each = self.values.view(-1, self.rows, *self.values.shape[1:])
        chosen = torch.arange(len(each), device=out.device)[users]
        of_users = out.view(len(out), *each.shape)  # of whom each touches only one's own rows
        of_users[torch.arange(len(out), device=out.device), chosen] += each[chosen]

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        each = weight.repeat_interleave(self.rows)  # no two users meet
        total += self.values * each.view(-1, *[1] * (self.values.ndim - 1))

    def forget(self, lost: Tensor) -> None:
        self.values = zeroed(self.values, lost.repeat_interleave(self.rows))

    def at_rows(self, ids: Tensor, users: int) -> Contribution:
        own = ids.reshape(users, -1)
        return Rows(own, self.values.reshape(*own.shape, *self.values.shape[ids.ndim :]))
