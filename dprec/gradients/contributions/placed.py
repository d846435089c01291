"""Gradients of a parameter's parts, and of what is computed of its numbers one by one: no user's is built whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor

from dprec.gradients.contributions.base import Contribution, SquaredNorms, all_of
from dprec.gradients.contributions.dense import Aligned, Dense
from dprec.gradients.contributions.look_ups import Rows
from dprec.gradients.contributions.outer import Outer

ViewSpec: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]  # a view's shape, strides and offset
Other = TypeVar("Other")  # a sum that has no parts


@dataclass
class Part(Contribution):
    """Gradients of a view of a parameter, such as `p[i][j]`, and of no other of its numbers."""

    inner: Contribution
    view: ViewSpec

    def materialise(self, out: Tensor, users: slice) -> None:
        shape, strides, offset = self.view
        own = out.new_zeros(len(out), *shape)
        self.inner.materialise(own, users)
        out.as_strided(own.shape, (out.stride(0), *strides), out.storage_offset() + offset).add_(own)

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        own = total.new_zeros(self.view[0])
        self.inner.add_to(own, weight)
        part_of(total, self.view).add_(own)

    def forget(self, lost: Tensor) -> None:
        self.inner.forget(lost)

    def numbers(self) -> list[Tensor]:
        return self.inner.numbers()


def part_of(whole: Tensor, view: ViewSpec) -> Tensor:
    shape, strides, offset = view
    return whole.as_strided(shape, strides, whole.storage_offset() + offset)


def in_parts(
    contributions: Mapping[str, list[Contribution]], sums: Mapping[str, Tensor | Other]
) -> tuple[dict[str, list[Contribution]], dict[str, Tensor | Other], list[tuple[Tensor, Tensor]]]:
    """Return the same with parts of a parameter, if no two have a number in common, as parameters of their own.

    What is added up for a part, the first of each pair, is to be added to the second.
    """
    uses, totals, added = dict(contributions), dict(sums), []
    for name, own in contributions.items():
        if type(own[0]) is not Part:
            continue
        whole, parts = sums[name], all_of(Part, own)
        if not parts or not isinstance(whole, Tensor):
            continue
        views = tuple(dict.fromkeys(part.view for part in parts))
        if are_apart(whole.numel(), views):
            del uses[name]
            for view in views:
                uses[f"{name} {view}"] = [part.inner for part in parts if part.view == view]
                totals[f"{name} {view}"] = total = whole.new_zeros(view[0])
                added.append((total, part_of(whole, view)))
    return uses, totals, added


@lru_cache(maxsize=1024)
def are_apart(numbers: int, views: tuple[ViewSpec, ...]) -> bool:
    """Whether these views of a parameter of so many numbers have none in common.

    >>> are_apart(6, (((3,), (1,), 0), ((3,), (1,), 3))), are_apart(6, (((3,), (1,), 0), ((2, 2), (2, 1), 2)))
    (True, False)
    """
    met = torch.cat([part_of(torch.arange(numbers), view).flatten() for view in views])
    return len(met.unique()) == len(met)


def times(use: Contribution, factors: Tensor) -> Contribution:
    """Return gradients (*shape) of every user, each multiplied by these factors (*shape), number by number."""
    if isinstance(use, Rows):
        return Rows(use.ids, use.values * factors[use.ids])
    if isinstance(use, (Dense, Aligned)):
        return replace(use, values=use.values * factors)
    first = factors.flatten()[:1]
    if isinstance(use, Outer) and bool((factors == first).all()):
        return Outer(use.left * first, use.right)
    return Times(use, factors)


@dataclass
class Times(Contribution):
    """Gradients of a tensor that follows from a parameter number by number, such as `relu(table)`."""

    inner: Contribution
    factors: Tensor  # the derivative

    def materialise(self, out: Tensor, users: slice) -> None:
        own = torch.zeros_like(out)
        self.inner.materialise(own, users)
        out.addcmul_(own, self.factors.to(out.dtype))

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        own = torch.zeros_like(total)
        self.inner.add_to(own, weight)
        total.addcmul_(own, self.factors.to(total.dtype))

    def forget(self, lost: Tensor) -> None:
        self.inner.forget(lost)

    def numbers(self) -> list[Tensor]:
        return [self.factors, *self.inner.numbers()]

    def terms(self) -> Tensor | None:
        return self._own.sqrt() if self._is_of_one_position else None

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        """Of one position: Σ_ij (l_i r_j f_ij)², a product of matrices, beside rows read of the same table."""
        reads, inner = all_of(Rows, others), self.inner
        if reads is None or not self._is_of_one_position:
            return None
        assert isinstance(inner, Outer)
        if not reads:
            return lambda: self._own
        return lambda: (self._own + inner.beside(reads, self.factors)).clamp_(min=0.0)

    @property
    def _is_of_one_position(self) -> bool:
        return type(self.inner) is Outer and self.inner.left.shape[1] == 1

    @cached_property
    def _own(self) -> Tensor:
        assert isinstance(self.inner, Outer)
        left, right = (each[:, 0].double().square() for each in (self.inner.left, self.inner.right))
        return (left @ self.factors.double().square()).mul_(right).sum(1)
