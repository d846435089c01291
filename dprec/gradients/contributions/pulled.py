"""Gradients of what is computed from parameters alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dprec.gradients.contributions.base import TAIL, Contribution, SquaredNorms, all_of, zeroed
from dprec.gradients.contributions.look_ups import Rows, joined
from dprec.gradients.contributions.outer import Outer
from dprec_kernels import sample_norms

APART = 1e-3  # of a gradient's norm: by so much it may differ where several are carried back together
_TOGETHER: dict[Hashable, bool] = {}  # of a computation: whether torch carries several back together, and rightly


@dataclass
class Pulled(Contribution):
    """Gradients of a tensor computed from parameters alone, carried back through that computation.

    They are carried back user by user, in the precision of the computation, and added up afterwards: adding in bfloat16
    would round by more than one user adds.
    """

    inner: Contribution  # the users' gradients of `expression`
    expression: Tensor  # requires grad
    parameter: Tensor

    def materialise(self, out: Tensor, users: slice) -> None:
        inner = out.new_zeros(out.shape[0], *self.expression.shape)
        self.inner.materialise(inner, users)
        out += self._back(inner)

    def forget(self, lost: Tensor) -> None:
        self.inner.forget(lost)

    def numbers(self) -> list[Tensor]:
        return [self.parameter, *self.inner.numbers()]

    def _back(self, gradient: Tensor) -> Tensor:
        """Carry gradients (b, …) back, each with the same bits whatever the others: zeros stand behind the last."""
        gradient = gradient.to(self.expression.dtype)
        if not self._together():
            return torch.stack([self._back_one(one) for one in gradient])
        behind = gradient.new_zeros(-(-TAIL // max(1, self.expression.numel())), *gradient.shape[1:])
        # Not autograd's own batches of gradients, which take many operations one user after the other.
        return torch.vmap(self._back_one)(torch.cat([gradient, behind]))[: len(gradient)]

    def _back_one(self, gradient: Tensor) -> Tensor:
        found = torch.autograd.grad(self.expression, self.parameter, gradient, retain_graph=True)[0]
        return found if found.layout == torch.strided else found.to_dense()

    def _together(self) -> bool:
        """Whether torch.vmap carries back two gradients as each alone: of some operations it cannot, or does wrong."""
        form = (tuple(self.expression.shape), tuple(self.parameter.shape), self.parameter.dtype, _operations(self))
        if form not in _TOGETHER:
            _TOGETHER[form] = self._tried()
        return _TOGETHER[form]

    def _tried(self) -> bool:
        two = as_good_as_random(torch.Size([2, *self.expression.shape]), self.expression.device)
        two = two.to(self.expression.dtype)
        apart = torch.stack([self._back_one(one) for one in two])
        try:
            together = torch.vmap(self._back_one)(two)
        except RuntimeError:
            return False
        least = max(APART, 16 * torch.finfo(apart.dtype).eps) * float(apart.nan_to_num().double().norm())
        return torch.allclose(together, apart, rtol=APART, atol=least, equal_nan=True)


@dataclass
class OfOneNumber(Contribution):
    """Gradients of one number computed from parameters alone, such as a penalty: all users have multiples of the same.

    Beside linear maps or look-ups of the same parameter no user's gradient is built.
    """

    factors: Tensor  # (B,) the users' gradients of the number
    number: Tensor  # requires grad
    parameter: Tensor

    @cached_property
    def same(self) -> Tensor:
        """The gradient of the number."""
        found = torch.autograd.grad(self.number, self.parameter, torch.ones_like(self.number), retain_graph=True)[0]
        return (found if found.layout == torch.strided else found.to_dense()).detach()

    def materialise(self, out: Tensor, users: slice) -> None:
        out += self.factors[users].view(-1, *[1] * self.same.dim()) * self.same

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        total += (weight.double() @ self.factors.double() * self.same.double()).to(total.dtype)

    def forget(self, lost: Tensor) -> None:
        self.factors = zeroed(self.factors, lost)

    def terms(self) -> Tensor:
        return self.factors.abs() * self._length()

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        """|f s + g|² = f² |s|² + 2 f ⟨s, g⟩ + |g|², of which look-ups or linear maps know the last two."""
        reads, maps = all_of(Rows, others), all_of(Outer, others)
        if reads is None and maps is None:
            return None

        def found() -> Tensor:
            factors = self.factors.double()
            squared = (factors * self._length()).square()
            if reads:
                ids, values = joined(reads)
                inner = (self.same.reshape(len(self.same), -1)[ids].double() * values).sum((1, 2))
                squared += 2 * factors * inner + sample_norms.rows(ids, values)
            elif maps:
                whole = maps[0].joined(maps[1:])
                inner = ((whole.left.double() @ self.same.double()) * whole.right).sum((1, 2))
                squared += 2 * factors * inner + sample_norms.linear(whole.left, whole.right)
            return squared.clamp_(min=0.0)  # also where rounding leaves less

        return found

    def numbers(self) -> list[Tensor]:
        return [self.parameter, self.factors]

    def _length(self) -> Tensor:
        return torch.linalg.vector_norm(self.same, dtype=torch.float64)


def as_good_as_random(shape: torch.Size, device: torch.device) -> Tensor:
    some = torch.arange(1.0, 1 + shape.numel(), device=device)
    return (some * some * (5**0.5 - 1)).cos_().view(shape)


def _operations(pulled: Pulled) -> tuple[str, ...]:
    """Return the names of the operations by which an expression was computed."""
    names, waiting, met = [], [pulled.expression.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in met:
            met.add(node)
            names.append(node.name())
            waiting += [following for following, _ in node.next_functions]
    return tuple(names)
