"""What one use of one parameter adds to each user's gradient, kept in whatever form is smallest.

A user's gradient of a parameter is the sum of that parameter's contributions. None of them needs to be
built to be summed over users; `materialise` builds a slice of users where nothing cheaper is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from dprec_kernels.ordering import is_among

AT_ONCE = 1 << 18  # numbers of users' gradients that are carried back through an expression together
Users: TypeAlias = "slice | Tensor"  # some of the batch's users: a range of places, or their places


def places(users: Users, count: int) -> list[int]:
    """Return the places in the batch, of so many, of some of its users.

    >>> places(slice(1, 9), 3), places(torch.tensor([2, 0]), 3)
    ([1, 2], [2, 0])
    """
    chosen: list[int] = users.tolist() if isinstance(users, Tensor) else list(range(count)[users])
    return chosen


class Contribution(Protocol):
    """One use's share of the users' gradients of one parameter of shape `shape`."""

    def materialise(self, out: Tensor, users: Users) -> None:
        """Add these users' gradients to out (b, *shape)."""

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        """Add Σ_u weight[u] · gradient_u to out (*shape)."""

    def forget(self, users: Tensor) -> None:
        """Make the gradients of the users in this (B,) mask exactly zero, whatever they held."""

    def terms(self) -> Tensor:
        """Return (B,) the sum of the norms of what is added up, of which rounding takes its part."""


@dataclass
class Outer:
    """A linear map's weight (o, i): Σ_t left_t rightᵀ_t, left = output gradient, right = input."""

    left: Tensor  # (B, T, o)
    right: Tensor  # (B, T, i)

    def materialise(self, out: Tensor, users: Users) -> None:
        out.baddbmm_(self.left[users].mT, self.right[users])

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        left = self.left * weight[:, None, None]
        out.addmm_(left.flatten(0, 1).T, self.right.flatten(0, 1))

    def forget(self, users: Tensor) -> None:
        self.left = zeroed(self.left, users)
        self.right = zeroed(self.right, users)

    def terms(self) -> Tensor:
        return (lengths(self.left) * lengths(self.right)).sum(1)

    def transposed(self) -> Outer:
        return Outer(self.right, self.left)


@dataclass
class Rows:
    """Rows of a table (items, *rest) read by id: value n goes to row ids[n]; repeats add up."""

    ids: Tensor  # (B, N)
    values: Tensor  # (B, N, *rest)

    def materialise(self, out: Tensor, users: Users) -> None:
        ids, values = self.ids[users], self.values[users]
        first = torch.arange(ids.shape[0], device=ids.device).unsqueeze(1) * out.shape[1]
        out.view(-1, *out.shape[2:]).index_add_(0, (ids + first).flatten(), values.flatten(0, 1))

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        out.index_add_(0, *self.weighted_rows(weight))

    def weighted_rows(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids (n,) and values (n, *rest) that add up to Σ_u weight[u] · gradient_u; ids may repeat."""
        values = self.values * weight.view(-1, *[1] * (self.values.dim() - 1))
        return self.ids.flatten(), values.flatten(0, 1)

    def reads(self, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ids, values (B, N, d) and the factor of each user: the same sum, with nothing multiplied yet."""
        return self.ids, self.values.reshape(*self.ids.shape, -1), weight

    def only(self, rows: Tensor) -> Rows:
        """Return what is left where no other rows than these, which ascend, may change."""
        return Rows(self.ids, zeroed(self.values, ~is_among(self.ids, rows)))

    def terms(self) -> Tensor:
        if self.ids.shape[1] and self.values.stride(1) == 0:  # a bag's, which all its reads share
            return lengths(self.values[:, 0].reshape(len(self.ids), -1)) * self.ids.shape[1]
        return lengths(self.values.reshape(*self.ids.shape, -1)).sum(1)

    def forget(self, users: Tensor) -> None:
        self.values = zeroed(self.values, users)


@dataclass
class SharedRows:
    """Rows of a table (items, d) that all users read alike, as one matrix: shared negatives. Repeats add up."""

    ids: Tensor  # (K,)
    left: Tensor  # (B, T, K)
    right: Tensor  # (B, T, d)

    def materialise(self, out: Tensor, users: Users) -> None:
        out.index_add_(1, self.ids, self.left[users].mT @ self.right[users])

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        out.index_add_(0, *self.weighted_rows(weight))

    def forget(self, users: Tensor) -> None:
        self.left = zeroed(self.left, users)
        self.right = zeroed(self.right, users)

    def weighted_rows(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        left = self.left * weight[:, None, None]
        return self.ids, left.flatten(0, 1).T @ self.right.flatten(0, 1)

    def only(self, rows: Tensor) -> SharedRows:
        kept = is_among(self.ids, rows)
        return SharedRows(self.ids[kept], self.left[:, :, kept], self.right)

    def terms(self) -> Tensor:
        return (lengths(self.left) * lengths(self.right)).sum(1)


@dataclass
class Dense:
    """Gradients that are small or have no structure: built as they are."""

    values: Tensor  # (B, *shape)
    summed: Tensor | None = None  # (B,) the norms of what was added up, where other batches would keep that instead

    def materialise(self, out: Tensor, users: Users) -> None:
        out += self.values[users]

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        out += torch.tensordot(weight, self.values, dims=1)

    def forget(self, users: Tensor) -> None:
        self.values = zeroed(self.values, users)

    def terms(self) -> Tensor:
        return lengths(self.values.reshape(len(self.values), -1)) if self.summed is None else self.summed


@dataclass
class Aligned:
    """A tensor whose own rows belong to the users, `rows` each, in order: each user touches only those."""

    values: Tensor  # (B * rows, *rest)
    rows: int

    def materialise(self, out: Tensor, users: Users) -> None:
        for place, user in enumerate(places(users, len(self.values) // self.rows)):
            own = slice(user * self.rows, (user + 1) * self.rows)
            out[place, own] += self.values[own]

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        each = weight.repeat_interleave(self.rows)
        out += self.values * each.view(-1, *[1] * (self.values.dim() - 1))

    def forget(self, users: Tensor) -> None:
        self.values = zeroed(self.values, users.repeat_interleave(self.rows))

    def terms(self) -> Tensor:
        return lengths(self.values.reshape(len(self.values) // self.rows, -1))


@dataclass
class Pulled:
    """Gradients of a tensor computed from parameters alone, carried back through that computation.

    They are carried back in the precision of the computation, user by user, and added up only then: a sum in bfloat16
    would be rounded by more than a user's share.
    """

    inner: Contribution  # the users' gradients of `expression`
    expression: Tensor  # requires grad
    parameter: Tensor

    def materialise(self, out: Tensor, users: Users) -> None:
        inner = out.new_zeros(out.shape[0], *self.expression.shape)
        self.inner.materialise(inner, users)
        out += self._back(inner, batched=True)

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        step = max(1, AT_ONCE // max(1, out.numel()))
        for start in range(0, len(weight), step):
            part = weight[start : start + step]
            each = out.new_zeros(len(part), *out.shape)
            self.materialise(each, slice(start, start + len(part)))
            out += torch.tensordot(part.to(out.dtype), each, dims=1)

    def forget(self, users: Tensor) -> None:
        self.inner.forget(users)

    def terms(self) -> Tensor:
        """Return (B,) the norms of what is added up, as much longer as the way back makes what is as good as random."""
        some = torch.arange(1.0, 1 + self.expression.numel(), device=self.expression.device)
        some = (some * some * (5**0.5 - 1)).cos_().view(self.expression.shape)
        stretch = lengths(self._back(some, batched=False).float().flatten()) / some.norm().clamp(min=1.0)
        return self.inner.terms() * stretch

    def _back(self, gradient: Tensor, batched: bool) -> Tensor:
        (result,) = torch.autograd.grad(
            self.expression, self.parameter, gradient.to(self.expression.dtype), retain_graph=True,
            is_grads_batched=batched,
        )  # fmt: skip
        return result


def zeroed(values: Tensor, where: Tensor) -> Tensor:
    """Return values (B, N, …) with exact zeros where this mask over the first dimensions is set, whatever was there."""
    return values.masked_fill(where.view(*where.shape, *[1] * (values.dim() - where.dim())), 0.0)


def lengths(values: Tensor) -> Tensor:
    """Return the norms of vectors (…, n), of those whose squares overflow, too: nobody is left out for that.

    >>> lengths(torch.tensor([[3.0, 4.0], [3e20, 4e20]]))
    tensor([5.0000e+00, 5.0000e+20])
    """
    norms = torch.linalg.vector_norm(values, dim=-1)
    over = torch.isinf(norms)
    if bool(over.any()):
        norms[over] = torch.linalg.vector_norm(values[over], dim=-1, dtype=torch.float64).to(norms.dtype)
    return norms
