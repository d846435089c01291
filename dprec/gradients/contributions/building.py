"""Users' gradients built a slice of users at a time: exact for any mixture of forms, cross terms included."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor

from dprec.gradients.contributions.base import SLICE, Contribution, Places, users_at_once
from dprec_kernels.wide_sum import WidePart
from dprec_kernels.workspace import workspace


def built(
    contributions: Sequence[Contribution], shape: Size, users: Sequence[int] | range
) -> Iterator[tuple[Places, Tensor]]:
    """Yield a slice of users and their gradients (b, *shape), which the next slice overwrites, for all users."""
    like = torch.empty(0, **precision(contributions))
    step = users_at_once(shape.numel(), like, SLICE)
    for start in range(0, len(users), step):
        part = users[start : start + step]
        chosen: Places = slice(part.start, part.stop) if isinstance(part, range) else torch.tensor(part).to(like.device)
        gradient = workspace.take("gradients", (len(part), *shape), like).zero_()
        for contribution in contributions:
            contribution.materialise(gradient, chosen)
        yield chosen, gradient


def square(gradient: Tensor) -> Tensor:
    """Return (b,) squared norms, in float64."""
    return torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1, dtype=torch.float64).square()


def precision(contributions: Sequence[Contribution]) -> dict[str, Any]:
    """Return the precision in which users' gradients are built, float32 at least, and where."""
    held = [value for contribution in contributions for value in contribution.numbers()]
    dtypes = [value.dtype for value in held]
    return {"dtype": functools.reduce(torch.promote_types, dtypes, torch.float32), "device": held[0].device}


@dataclass
class BuiltAgain(Contribution):
    """Users' gradients that are too many to be held: they are built for the norm, and in the same way for the sum."""

    uses: list[Contribution]
    shape: Size

    def materialise(self, out: Tensor, places: Places) -> None:
        for use in self.uses:
            use.materialise(out, places)

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        self._add(WidePart(out, out.dtype), weight)

    def add_wide(self, total: Tensor, weight: Tensor) -> None:
        self._add(WidePart(total, weight.dtype), weight)

    def forget(self, lost: Tensor) -> None:
        for use in self.uses:
            use.forget(lost)

    def terms(self) -> Tensor:
        return torch.stack([use.terms().double() for use in self.uses]).sum(0)

    def numbers(self) -> list[Tensor]:
        return [value for use in self.uses for value in use.numbers()]

    def _add(self, part: WidePart, weight: Tensor) -> None:
        for chosen, gradient in built(self.uses, self.shape, range(len(weight))):
            part.add(gradient, weight[chosen])
        part.flush()
