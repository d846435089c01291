"""What a linear map adds to the gradient of its weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dprec.gradients.contributions.base import Contribution, Line, OfProducts, Places, SquaredNorms, all_of
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.look_ups import SharedRows
from dprec_kernels import sample_norms
from dprec_kernels.joint import Products
from dprec_kernels.paths import on_card
from dprec_kernels.products import add_products, multiply_each
from dprec_kernels.wide_sum import add_product
from dprec_kernels.workspace import workspace


@dataclass
class Outer(OfProducts):
    """A linear map's weight (o, i): Σ_t left_t rightᵀ_t, left = output gradient, right = input."""

    left: Tensor  # (B, T, o)
    right: Tensor  # (B, T, i)

    def materialise(self, out: Tensor, places: Places) -> None:
        add_products(out, self.left[places].mT, self.right[places])

    def write(self, out: Tensor, places: Places) -> None:
        multiply_each(self.left[places].mT, self.right[places], out)

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        left = self.left * weight[:, None, None]
        out.addmm_(left.flatten(0, 1).T, self.right.flatten(0, 1))

    def add_wide(self, total: Tensor, weight: Tensor) -> None:
        left = self.left * weight[:, None, None]
        add_product(total, left.flatten(0, 1), self.right.flatten(0, 1))

    def lines(self) -> Line | None:
        plain = self.left.dtype == self.right.dtype == torch.float32
        return Products(self.left, self.right) if plain else None

    def joined(self, others: Sequence[Outer]) -> Products:
        """Return the maps of one weight as one, with the positions of all."""
        return Products(*self._joined(others))

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        """Linear maps of the same weight are one, with the positions of all."""
        maps = all_of(Outer, others)
        return None if maps is None else lambda: sample_norms.linear(*self._joined(maps))

    def settled(self, others: Sequence[Contribution], name: str) -> Contribution | None:
        """On long histories the users' gradients are smaller, and norm and sum need not multiply twice."""
        maps = all_of(Outer, others) if others else []
        if maps is None:
            return None
        left, right = self._joined(maps) if maps else (self.left, self.right)
        if on_card(left) or sample_norms.prefers_gram(left.shape[1], left.shape[2], right.shape[2]):
            return None
        gradient = workspace.take(f"gradients of {name}", (left.shape[0], left.shape[2], right.shape[2]), left)
        return Dense(multiply_each(left.mT, right, gradient))

    def transposed(self) -> Outer:
        return Outer(self.right, self.left)

    def at_rows(self, ids: Tensor, users: int) -> Contribution | None:
        return SharedRows(ids, self.left, self.right) if ids.dim() == 1 else None

    def _joined(self, others: Sequence[Outer]) -> tuple[Tensor, Tensor]:
        if not others:
            return self.left, self.right
        uses = (self, *others)
        return torch.cat([use.left for use in uses], 1), torch.cat([use.right for use in uses], 1)
