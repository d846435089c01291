"""What a linear map adds to the gradient of its weight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dprec.gradients.contributions.base import Contribution, Line, OfProducts, SquaredNorms, zeroed
from dprec.gradients.contributions.look_ups import Rows, SharedRows, joined
from dprec_kernels import sample_norms
from dprec_kernels.joint import Products
from dprec_kernels.products import add_products, multiply_each
from dprec_kernels.wide_sum import add_product, lengths


@dataclass
class Outer(OfProducts):
    """A linear map's weight (o, i): Σ_t left_t rightᵀ_t, left = output gradient, right = input."""

    left: Tensor  # (B, T, o)
    right: Tensor  # (B, T, i)

    def materialise(self, out: Tensor, users: slice) -> None:
        add_products(out, self.left[users].mT, self.right[users])

    def write(self, out: Tensor, users: slice) -> None:
        multiply_each(self.left[users].mT, self.right[users], out)

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        left = self.left * weight[:, None, None]
        add_product(total, left.flatten(0, 1), self.right.flatten(0, 1))

    def lines(self) -> Line | None:
        plain = self.left.dtype == self.right.dtype == torch.float32
        return Products(self.left, self.right) if plain else None

    def joined(self, others: Sequence[Outer]) -> Outer:
        """Return the maps of one weight as one, with the positions of all."""
        return Outer(*self._joined(others)) if others else self

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        """Linear maps of the same weight are one, with the positions of all; beside them its rows may be read by id."""
        maps = [use for use in others if isinstance(use, Outer)]
        reads = [use for use in others if isinstance(use, Rows)]
        if len(maps) + len(reads) < len(others):
            return None
        if not reads:
            return lambda: sample_norms.linear(*self._joined(maps))
        whole = self.joined(maps)
        if whole.is_smaller_built or sum(use.ids.shape[1] for use in reads) >= whole.left.shape[2]:
            return None
        return lambda: (sample_norms.linear(whole.left, whole.right) + whole.beside(reads)).clamp_(min=0.0)

    def beside(self, reads: Sequence[Rows], factors: Tensor | None = None) -> Tensor:
        """Return (B,) by how much reads of the same table add to the squared norms, where the map has these factors."""
        ids, values = joined(reads)
        wide = values.double()
        met = self.left.gather(2, ids.unsqueeze(1).expand(-1, self.left.shape[1], -1))  # (B, T, N)
        inner = self.right.double() @ (wide if factors is None else wide * factors[ids]).mT
        own: Tensor = 2 * inner.mul_(met).sum((1, 2)) + sample_norms.rows(ids, values)
        return own

    @property
    def is_smaller_built(self) -> bool:
        """Whether, on long histories, the users' gradients are smaller, so that norm and sum multiply once."""
        return not sample_norms.prefers_gram(self.left.shape[1], self.left.shape[2], self.right.shape[2])

    def transposed(self) -> Outer:
        return Outer(self.right, self.left)

    def at_rows(self, ids: Tensor, users: int) -> Contribution | None:
        return SharedRows(ids, self.left, self.right) if ids.dim() == 1 else None

    def _joined(self, others: Sequence[Outer]) -> tuple[Tensor, Tensor]:
        if not others:
            return self.left, self.right
        uses = (self, *others)
        return torch.cat([use.left for use in uses], 1), torch.cat([use.right for use in uses], 1)


@dataclass
class Maps(OfProducts):
    """Several linear maps of the same sizes, each of a weight of its own: (n, o, i) in all."""

    left: Tensor  # (n, B, T, o)
    right: Tensor  # (n, B, T, i)

    def materialise(self, out: Tensor, users: slice) -> None:
        out += (self.left[:, users].mT @ self.right[:, users]).transpose(0, 1)

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        left = self.left * weight[:, None, None]
        add_product(total, left.flatten(1, 2), self.right.flatten(1, 2))

    def forget(self, lost: Tensor) -> None:
        every = lost.expand(len(self.left), -1)
        self.left, self.right = zeroed(self.left, every), zeroed(self.right, every)

    def terms(self) -> Tensor:
        return (lengths(self.left) * lengths(self.right)).sum((0, 2))

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        if others:
            return None
        left, right = self.left.flatten(0, 1), self.right.flatten(0, 1)
        return lambda: sample_norms.linear(left, right).view(len(self.left), -1).sum(0)
