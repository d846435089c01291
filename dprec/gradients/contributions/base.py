"""What one use of one parameter adds to each user's gradient, kept in whatever form is smallest.

A user's gradient of a parameter is the sum of that parameter's contributions. None of them needs to be
built to be summed over users; `materialise` builds a slice of users where nothing cheaper is exact.

A form gives two methods, and with these alone its norms and sums are right, beside any other form: they are
built. What else it knows of itself, or of itself beside other forms, makes them cheaper.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from torch import Tensor

from dprec_kernels.joint import Positions, Products, Softmaxes, Vectors
from dprec_kernels.paths import host_readable
from dprec_kernels.wide_sum import TOGETHER, WidePart, lengths

Line: TypeAlias = "Products | Vectors | Positions | Softmaxes"
SquaredNorms: TypeAlias = Callable[[], Tensor]  # takes (B,) squared norms, in float64

TAIL = 31  # numbers at a tensor's end that a CPU may compute one by one, by another function than the rest
SLICE = 1 << 20  # numbers of users' gradients built at once: 4 MB of float32; of 1 MB none is faster
SLICE_ON_CARD = 1 << 26  # the same on a GPU, where each slice costs its launches


def users_at_once(numbers: int, like: Tensor, most: int) -> int:
    """Return of how many users gradients of so many numbers are built at once: `most` numbers on a CPU.

    >>> import torch
    >>> users_at_once(10, torch.zeros(1), SLICE), users_at_once(1 << 17, torch.zeros(1), SLICE)
    (64, 8)
    """
    if host_readable(like):
        return min(TOGETHER, max(1, most // max(1, numbers)))
    return max(1, SLICE_ON_CARD // max(1, numbers))


class Contribution(ABC):
    """One use's share of the users' gradients of one parameter of shape `shape`."""

    @abstractmethod
    def materialise(self, out: Tensor, users: slice) -> None:
        """Add the gradients of these users to out (b, *shape)."""

    @abstractmethod
    def forget(self, lost: Tensor) -> None:
        """Make the gradients of the users in this (B,) mask exactly zero, whatever they held."""

    # From here on: what a form may know better.

    def terms(self) -> Tensor | None:
        """Return (B,) how long all that is added up is, where norm and sum are taken by different ways.

        Where these terms cancel, the two may differ by the rounding of the terms. None: what is summed is the very
        gradient whose norm is taken.
        """
        return None

    def write(self, out: Tensor, users: slice) -> None:
        """Overwrite out (b, *shape) with the gradients of these users."""
        self.materialise(out.zero_(), users)

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        """Return a way to the norms of this and the others together that builds no gradient; None: build them."""
        return None

    def lines(self) -> Line | None:
        """Return what is added up as kernels know it, whose lengths are `terms`; None where it has another form."""
        return None

    def transposed(self) -> Contribution | None:
        """Return the contribution to a matrix, if this is the one to its transpose; None leaves that to autograd."""
        return None

    def at_rows(self, ids: Tensor, users: int) -> Contribution | None:
        """Return the contribution to a table, if this is the one to its rows at `ids`; None leaves that to autograd."""
        return None

    def numbers(self) -> list[Tensor]:
        """Return tensors of the kind that are added up: where it is carried back, those of its parameter."""
        return [v for v in vars(self).values() if isinstance(v, Tensor) and v.dtype.is_floating_point]

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        """Add Σ_u weight[u] · gradient_u to a total (*shape) that may be wider than gradients and weights.

        A few users are added at a time, since float32 cannot hold the sum of many.
        """
        part, step = WidePart(total, weight.dtype), users_at_once(total.numel(), total, SLICE)
        for start in range(0, len(weight), step):
            own = weight[start : start + step]
            gradients = own.new_zeros(len(own), *total.shape)
            self.materialise(gradients, slice(start, start + len(own)))
            part.add(gradients, own)
        part.flush()


class OfProducts(Contribution):
    """A form that is Σ_t left_t rightᵀ_t for each user."""

    left: Tensor  # (B, T, …)
    right: Tensor  # (B, T, …)

    def forget(self, lost: Tensor) -> None:
        self.left = zeroed(self.left, lost)
        self.right = zeroed(self.right, lost)

    def terms(self) -> Tensor:
        return (lengths(self.left) * lengths(self.right)).sum(1)


Form = TypeVar("Form", bound=Contribution)


def all_of(form: type[Form], uses: Sequence[Contribution]) -> list[Form] | None:
    """Return the uses if every one of them has this form."""
    if not uses:
        return []
    found = [use for use in uses if isinstance(use, form)]
    return found if len(found) == len(uses) else None


def zeroed(values: Tensor, where: Tensor) -> Tensor:
    """Return values (B, N, …) with exact zeros where this mask over the first dimensions is set, whatever was there."""
    return values.masked_fill(where.view(*where.shape, *[1] * (values.ndim - where.ndim)), 0.0)
