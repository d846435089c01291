"""Gradients of table rows that are read by id: nothing here grows with the table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TypeAlias

import torch
from torch import Size, Tensor

from dprec.gradients.contributions.base import (
    Contribution,
    Line,
    OfProducts,
    SquaredNorms,
    all_of,
    zeroed,
)
from dprec.gradients.contributions.building import built, square
from dprec_kernels import sample_norms
from dprec_kernels.joint import Vectors
from dprec_kernels.ordering import distinct, is_among
from dprec_kernels.paths import host_readable
from dprec_kernels.products import multiply_each
from dprec_kernels.tables import spread
from dprec_kernels.wide_sum import add_product, lengths

# Ids (u, ...), values (u, ..., d), and a factor for each of the u (u,).
Scaled: TypeAlias = tuple[Tensor, Tensor, Tensor]


class LookUp(Contribution):
    """Rows of a table read by id; a strategy may restrict which of them change."""

    ids: Tensor

    @abstractmethod
    def terms(self) -> Tensor: ...

    @abstractmethod
    def only(self, rows: Tensor) -> LookUp:
        """Return the same use, without gradients of rows other than `rows` (ascending)."""

    @abstractmethod
    def ids_of(self, user: slice) -> Tensor:
        """Return the ids (n,) that this user reads."""

    @abstractmethod
    def reads_with_gradient(self, besides: Tensor) -> tuple[Tensor, Tensor]:
        """Return the users and rows of the reads that have a finite, non-zero gradient.

        Others do not count: a number that is not finite makes even padding's gradients not finite. Shared rows in
        `besides` (ascending) are left out.
        """

    @abstractmethod
    def read(self, users: Tensor, besides: Tensor) -> tuple[Tensor, Tensor]:
        """Like `reads_with_gradient`, but all reads of these users (ascending), with or without a gradient."""

    @abstractmethod
    def scaled(self, weight: Tensor, dtype: torch.dtype) -> Scaled:
        """Return ids, values and factors that add up to Σ_u weight[u] · gradient_u, as exactly as `dtype` holds it."""


@dataclass
class Rows(LookUp):
    """Rows of a table (items, *rest) read by id: value n goes to row ids[n]; repeats add up."""

    ids: Tensor  # (B, N)
    values: Tensor  # (B, N, *rest)

    def flat(self) -> Tensor:
        """Return the values as vectors (B, N, d), also of users who read nothing."""
        return self.values.flatten(2) if self.values.ndim > 2 else self.values.unsqueeze(2)

    def materialise(self, out: Tensor, users: slice) -> None:
        ids, values = self.ids[users], self.values[users]
        if ids.shape[0] > 1:
            ids = ids + torch.arange(0, out.shape[0] * out.shape[1], out.shape[1], device=ids.device).unsqueeze(1)
        out.view(-1, *out.shape[2:]).index_add_(0, ids.flatten(), values.flatten(0, 1))

    def scaled(self, weight: Tensor, dtype: torch.dtype) -> Scaled:
        return self.ids, self.flat(), weight  # nothing is multiplied yet

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        values = self.values * weight.view(-1, *[1] * (self.values.ndim - 1))
        total.index_add_(0, self.ids.flatten(), values.flatten(0, 1).to(total.dtype))

    def forget(self, lost: Tensor) -> None:
        self.values = zeroed(self.values, lost)

    def terms(self) -> Tensor:
        if self.ids.shape[1] and self.values.stride(1) == 0:  # a bag's, which all its reads share
            return lengths(self.values[:, 0].reshape(len(self.ids), -1)) * self.ids.shape[1]
        return lengths(self.flat()).sum(1)

    def lines(self) -> Line | None:
        values = self.flat()
        plain = values.dtype == torch.float32 and (values.shape[1] == 1 or values.stride(1) != 0)
        return Vectors(values) if plain else None

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        reads = all_of(Rows, others)
        return None if reads is None else lambda: sample_norms.rows(*joined([self, *reads]))

    def only(self, rows: Tensor) -> Rows:
        return Rows(self.ids, zeroed(self.values, ~is_among(self.ids, rows)))

    def ids_of(self, user: slice) -> Tensor:
        return self.ids[user].flatten()

    def with_gradient(self) -> Tensor:
        """Return (B, N) whether each read has a finite, non-zero gradient."""
        values = self.flat()
        if values.shape[1] and values.stride(1) == 0:
            values = values[:, :1]  # a bag's, which all its reads share
        if host_readable(values):  # a tenth of the time of torch's norm
            largest = values.abs().amax(2)
        else:
            largest = torch.linalg.vector_norm(values, ord=torch.inf, dim=2)
        return ((largest > 0) & (largest < torch.inf)).expand(self.ids.shape)

    def reads_with_gradient(self, besides: Tensor) -> tuple[Tensor, Tensor]:
        moved = self.with_gradient()
        return moved.nonzero()[:, 0], self.ids[moved]

    def read(self, users: Tensor, besides: Tensor) -> tuple[Tensor, Tensor]:
        return users.repeat_interleave(self.ids.shape[1]), self.ids[users].flatten()


@dataclass
class PaddedRows(Rows):
    """Reads on a GPU; their gradients at `padding` are zeroed later, for all tables at once."""

    padding: int


def without_padding(uses: Sequence[PaddedRows]) -> list[Rows]:
    """Return these uses by the same users, with the gradients of padding reads zeroed.

    >>> use = PaddedRows(torch.tensor([[4, 0]]), torch.ones(1, 2, 1), padding=0)
    >>> without_padding([use])[0].values.flatten()
    tensor([1., 0.])
    """
    ids = uses[0].ids if len(uses) == 1 else torch.cat([use.ids for use in uses], 1)  # (B, N)
    padding: Tensor | int = uses[0].padding
    if any(use.padding != padding for use in uses):
        padding = of_columns([use.padding for use in uses], [use.ids.shape[1] for use in uses], ids.device)
    return without(uses, ids == padding)


def only_together(uses: Sequence[Rows], rows: Sequence[Tensor], sizes: Sequence[int]) -> list[Rows]:
    """Return `only(rows)` of uses of several tables at once; `sizes` are the tables' numbers of rows.

    >>> reads = [Rows(torch.tensor([[1]]), torch.ones(1, 1, 1)), Rows(torch.tensor([[1, 2]]), torch.ones(1, 2, 1))]
    >>> left = only_together(reads, [torch.tensor([1]), torch.tensor([2])], [3, 4])
    >>> [use.values.flatten().tolist() for use in left]
    [[1.0], [0.0, 1.0]]
    """
    device, starts, reads = uses[0].ids.device, [0, *accumulate(sizes)], [use.ids.shape[1] for use in uses]
    ids = torch.cat([use.ids for use in uses], 1) + of_columns(starts, reads, device)
    lost = ~is_among(ids, torch.cat(list(rows)) + repeated(starts, [len(each) for each in rows], device))
    return without(uses, lost)


def without(uses: Sequence[Rows], lost: Tensor) -> list[Rows]:
    """Return uses by the same users, with the gradients of `lost` reads zeroed (B, N: all uses side by side)."""
    reads, widths = [use.ids.shape[1] for use in uses], [use.values.shape[2:].numel() for use in uses]
    if len(uses) == 1 or len({use.values.dtype for use in uses}) > 1:
        return [Rows(u.ids, zeroed(u.values, own)) for u, own in zip(uses, lost.split(reads, 1), strict=True)]
    sizes = [width for width, count in zip(widths, reads, strict=True) for _ in range(count)]
    each = torch.cat([use.values.reshape(len(lost), -1) for use in uses], 1)  # (B, N d)
    each.masked_fill_(lost.index_select(1, of_columns(range(len(sizes)), sizes, lost.device)), 0.0)
    own = each.split([width * count for width, count in zip(widths, reads, strict=True)], 1)
    return [Rows(use.ids, part.view(use.values.shape)) for use, part in zip(uses, own, strict=True)]


def repeated(numbers: Sequence[int], times: Sequence[int], device: torch.device) -> Tensor:
    """Repeat the first numbers, each as often as `times` says; the result is made on the device.

    >>> repeated([0, 5, 9], [2, 1], torch.device("cpu"))
    tensor([0, 0, 5])
    """
    return spread([numbers[: len(times)]], times, device)[0]


def of_columns(numbers: Sequence[int], times: Sequence[int], device: torch.device) -> Tensor:
    """Like `repeated`, but cached on the device for later batches: do not modify the result."""
    return _of_columns(tuple(numbers), tuple(times), device)


@lru_cache(maxsize=64)
def _of_columns(numbers: tuple[int, ...], times: tuple[int, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # ranking may fill the cache first, and training uses it too
        return repeated(numbers, times, device)


@dataclass
class SharedRows(OfProducts, LookUp):
    """Rows of a table (items, d) that all users read, such as shared negatives, as one matrix. Repeats add up."""

    ids: Tensor  # (K,)
    left: Tensor  # (B, T, K)
    right: Tensor  # (B, T, d)

    def materialise(self, out: Tensor, users: slice) -> None:
        out.index_add_(1, self.ids, self._products(users).to(out.dtype))

    def scaled(self, weight: Tensor, dtype: torch.dtype) -> Scaled:
        """Sum all users in one product, in float64: float32 would round too much."""
        values = self._product(weight, torch.float64).to(dtype)
        return self.ids, values, values.new_ones(len(values))

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        total.index_add_(0, self.ids, self._product(weight, total.dtype))

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        """The other uses may be shared rows, or rows that each user reads."""
        shared = [self, *(use for use in others if isinstance(use, SharedRows))]
        own = [use for use in others if isinstance(use, Rows)]
        return (lambda: _squared_norms(shared, own)) if len(shared) + len(own) == 1 + len(others) else None

    def only(self, rows: Tensor) -> SharedRows:
        kept = is_among(self.ids, rows)
        return SharedRows(self.ids[kept], self.left[:, :, kept], self.right)

    def numbered(self, rows: Tensor) -> SharedRows:
        """Return the same use of a table that has only `rows` (ascending)."""
        return SharedRows(torch.searchsorted(rows, self.ids.contiguous()), self.left, self.right)

    def ids_of(self, user: slice) -> Tensor:
        return self.ids.flatten()

    def reads_with_gradient(self, besides: Tensor) -> tuple[Tensor, Tensor]:
        use = self.only(self.ids[~is_among(self.ids, besides)].unique())
        if not len(use.ids):
            return use.ids, use.ids
        largest = use.left.abs() * use.right.abs().amax(2, keepdim=True)  # (B, T, K), so that positions cannot cancel
        user, read = ((largest > 0) & (largest < torch.inf)).any(1).nonzero().unbind(1)
        return user, use.ids[read]

    def read(self, users: Tensor, besides: Tensor) -> tuple[Tensor, Tensor]:
        ids = self.ids[~is_among(self.ids, besides)].unique()
        return users.repeat_interleave(len(ids)), ids.repeat(len(users))

    def _products(self, users: slice) -> Tensor:
        left, right = self.left[users], self.right[users]
        return multiply_each(left.mT, right, left.new_empty(len(left), left.shape[2], right.shape[2]))

    def _product(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return Σ_u weight[u] · left_uᵀ right_u."""
        total = self.left.new_zeros(len(self.ids), self.right.shape[2], dtype=dtype)
        add_product(total, (self.left * weight[:, None, None]).flatten(0, 1), self.right.flatten(0, 1))
        return total


def as_look_ups(uses: Iterable[Contribution]) -> list[LookUp] | None:
    """Return a table's uses if it is only looked up; None where one of them is of the whole table."""
    return all_of(LookUp, list(uses))  # type: ignore[type-abstract]


def joined(reads: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    """Return the ids (B, N) and values (B, N, d) of reads of one table, one after the other."""
    values = [use.flat() for use in reads]
    if len(reads) == 1:
        return reads[0].ids, values[0]
    return torch.cat([use.ids for use in reads], 1), torch.cat(values, 1)


def _squared_norms(shared: Sequence[SharedRows], own: Sequence[Rows]) -> Tensor:
    """Return the squared norms of users who all read the same shared rows, and rows of their own besides.

    Gradients are built of the shared rows alone, so that nothing grows with the table.
    """
    read = distinct(torch.cat([use.ids for use in shared]))  # (K,) ascending
    small: list[Contribution] = [use.numbered(read) for use in shared]
    elsewhere: Tensor | float = 0.0
    if own:
        ids, values = joined(own)
        if not len(read):  # a strategy has chosen none of the shared rows
            return sample_norms.rows(ids, values)
        place = torch.searchsorted(read, ids.contiguous()).clamp(max=len(read) - 1)  # (B, N)
        met = (read[place] == ids).unsqueeze(2)
        small.append(Rows(place, values.masked_fill(~met, 0.0).double()))
        elsewhere = sample_norms.rows(ids, values.masked_fill(met, 0.0))
    users, shape = len(shared[0].left), Size((len(read), shared[0].right.shape[2]))
    squared = [square(gradient) for _, gradient in built(small, shape, users, torch.float64)]
    return torch.cat(squared) + elsewhere
