"""Gradients of what is computed from parameters alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dprec.gradients.contributions.base import Contribution, Places, lengths

AT_ONCE = 1 << 18  # numbers of users' gradients that are carried back through an expression together


@dataclass
class Pulled(Contribution):
    """Gradients of a tensor computed from parameters alone, carried back through that computation.

    They are carried back user by user, in the precision of the computation, and added up afterwards: adding in bfloat16
    would round by more than one user adds.
    """

    inner: Contribution  # the users' gradients of `expression`
    expression: Tensor  # requires grad
    parameter: Tensor

    def materialise(self, out: Tensor, places: Places) -> None:
        inner = out.new_zeros(out.shape[0], *self.expression.shape)
        self.inner.materialise(inner, places)
        out += self._back(inner, batched=True)

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        step = max(1, AT_ONCE // max(1, out.numel()))
        for start in range(0, len(weight), step):
            part = weight[start : start + step]
            each = out.new_zeros(len(part), *out.shape)
            self.materialise(each, slice(start, start + len(part)))
            out += torch.tensordot(part.to(out.dtype), each, dims=1)

    def forget(self, lost: Tensor) -> None:
        self.inner.forget(lost)

    def terms(self) -> Tensor:
        """Return (B,) the norms of what is added up, as much longer as the way back makes what is as good as random."""
        some = torch.arange(1.0, 1 + self.expression.numel(), device=self.expression.device)
        some = (some * some * (5**0.5 - 1)).cos_().view(self.expression.shape)
        stretch = lengths(self._back(some, batched=False).float().flatten()) / some.norm().clamp(min=1.0)
        return self.inner.terms() * stretch

    def numbers(self) -> list[Tensor]:
        return [self.parameter, *self.inner.numbers()]

    def _back(self, gradient: Tensor, batched: bool) -> Tensor:
        def back(one: Tensor) -> Tensor:
            return torch.autograd.grad(self.expression, self.parameter, one, retain_graph=True)[0]

        # Not autograd's own batches of gradients, which take many operations one user after the other.
        return (torch.vmap(back) if batched else back)(gradient.to(self.expression.dtype))
