"""Sums of users' gradients of a table, kept as the rows that occur; several sums can be merged at once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate, pairwise, zip_longest

import torch
from torch import Tensor

from dprec.distributed.ranks import Ranks
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.look_ups import LookUp, Scaled, of_columns, repeated
from dprec_kernels.ordering import ordered
from dprec_kernels.paths import host_readable
from dprec_kernels.row_sums import Part, row_sums
from dprec_kernels.sparse_update import summed


class RowSum:
    """Adds up rows of a table of this shape, in float32 at least. No cost grows with the table.

    >>> from dprec.gradients.contributions import Rows
    >>> total = RowSum(torch.Size([9, 2]), torch.float32)
    >>> total.add(Rows(torch.tensor([[4, 7], [4, 0]]), torch.ones(2, 2, 2)), torch.tensor([1.0, 0.5]))
    >>> total.merged()
    (tensor([0, 4, 7]), tensor([[0.5000, 0.5000],
            [1.5000, 1.5000],
            [1.0000, 1.0000]]))
    """

    def __init__(self, shape: torch.Size, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        """`device` has the table and the merged rows; added rows may be on the device that computes losses."""
        self.shape, self.device = shape, torch.device(device)
        self.dtype = torch.promote_types(dtype, torch.float32)
        self.parts: list[Scaled] = []
        self._held: tuple[Tensor, Tensor] | None = None  # what was merged together with other sums

    def zero_(self) -> None:
        self.parts.clear()
        self._held = None

    def add(self, use: Contribution, weight: Tensor) -> None:
        """Add Σ_u weight[u] · gradient_u of one use."""
        assert isinstance(use, LookUp)  # strategies refuse a table that is used in another way
        self._held = None
        self.parts.append(use.scaled(weight, self.dtype))

    def hold(self, rows: Tensor, sums: Tensor) -> None:
        """Keep merged rows, ascending and without padding, and their sums."""
        self._held = rows, sums.view(len(rows), *self.shape[1:])

    def pop_merged(self) -> tuple[Tensor, Tensor]:
        """Return the merged rows and release them: the caller may modify them."""
        held, self._held = self._held, None
        return self.merged() if held is None else held

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return self.shape[1:].numel()

    @property
    def held(self) -> bool:
        """Whether the merged rows are known to contain no padding."""
        return self._held is not None

    def gather_(self, ranks: Ranks) -> None:
        """Make this the sum over all processes."""
        if ranks.size > 1:
            self.take(list(zip(*map(ranks.gathered, self.merged()), strict=True)))

    def take(self, given: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Make this the sum of rows that several processes have added up."""
        self._held = None
        self.parts = [(ids, own, own.new_ones(len(ids))) for ids, own in given if len(ids)]

    def merged(self) -> tuple[Tensor, Tensor]:
        """Return the rows that were added to, ascending, and their sums (n, d)."""
        if self._held is not None:
            rows, sums = self._held
            return rows, sums.clone()
        if not self.parts:
            none = torch.zeros(0, dtype=torch.int64, device=self.device)
            return none, torch.zeros(0, *self.shape[1:], dtype=self.dtype, device=self.device)
        ids, values, scales = self.parts[0] if len(self.parts) == 1 else _joined(self.parts)
        rows, sums = summed(ids, values, scales, self.dtype)
        return rows.to(self.device), sums.view(len(rows), *self.shape[1:]).to(self.device)


def merge_together(
    sums: Mapping[str, RowSum], padding: Mapping[str, Sequence[int]], wanted: Mapping[str, Tensor]
) -> Tensor | int:
    """Merge the sums on a GPU at once, without padding rows: one by one, each would wait for the device.

    A sum named in `wanted` then has exactly the rows given there, ascending. Return how many of them got no gradient.
    """
    alike: dict[Hashable, list[str]] = {}
    for name, total in sums.items():
        if total.parts and not host_readable(total.parts[0][0]) and all(ids.dim() == 2 for ids, _, _ in total.parts):
            form = tuple(id(scales) for _, _, scales in total.parts)  # uses by the same users, under the same factors
            alike.setdefault((total.dtype, form, name in wanted, total.device), []).append(name)
    untouched: Tensor | int = 0
    unknown = []
    for names in alike.values():
        group = FusedRowSums([sums[name] for name in names], [sorted(padding.get(name, ())) for name in names])
        if names[0] in wanted:
            missing = group.merge_into([wanted[name] for name in names])
            untouched = missing if isinstance(untouched, int) else untouched + missing
        else:
            unknown.append((group, group.distinct()))
    counts = iter(torch.cat([found for _, found in unknown]).tolist() if unknown else ())  # the one wait
    for group, found in unknown:
        group.merge_distinct([next(counts) for _ in found])
    return untouched


class FusedRowSums:
    """Several sums as one: rows are numbered across the tables; one more row takes padding and users left out."""

    def __init__(self, sums: Sequence[RowSum], padding: Sequence[Sequence[int]]) -> None:
        self._sums, self._device = sums, sums[0].parts[0][0].device
        self._starts, numbers = [0, *accumulate(total.shape[0] for total in sums)], []
        for parts in zip(*(total.parts for total in sums), strict=True):
            reads = [ids.shape[1] for ids, _, _ in parts]
            ids = torch.cat([ids for ids, _, _ in parts], 1) + self._each(self._starts, reads)  # (B, N)
            lost = parts[0][2].unsqueeze(1) == 0
            for rows in zip_longest(*padding):
                none = [-1 if row is None else start + row for start, row in zip(self._starts, rows, strict=False)]
                lost = lost | (ids == self._each(none, reads))
            numbers.append(ids.masked_fill_(lost, self._starts[-1]).view(-1))
        self._reads, self._order = ordered(numbers[0] if len(numbers) == 1 else torch.cat(numbers))

    def merge_into(self, wanted: Sequence[Tensor]) -> Tensor:
        """Give each sum exactly these rows; return how many of them got no gradient."""
        every = torch.cat([rows.to(self._device) for rows in wanted]) + repeated(
            self._starts, [len(rows) for rows in wanted], self._device
        )
        begins, ends = (torch.searchsorted(self._reads, every, right=right) for right in (False, True))
        self._hand_out([rows.to(self._sums[0].device) for rows in wanted], begins, ends)
        return (begins == ends).sum()

    def distinct(self) -> Tensor:
        """Return how many distinct rows come before each table's, and how many there are in total."""
        new = torch.ones_like(self._reads)
        new[1:] = self._reads[1:] != self._reads[:-1]
        self._row = new.cumsum(0)  # (m,) which row a read is of, from 1 on
        edges = torch.searchsorted(self._reads, self._each(self._starts, [1] * len(self._starts)))
        return torch.cat([new.new_zeros(1), self._row])[edges]

    def merge_distinct(self, before: Sequence[int]) -> None:
        """Give each sum the rows that got a gradient."""
        bounds = torch.searchsorted(self._row, torch.arange(1, before[-1] + 2, device=self._device))
        counts = [last - first for first, last in pairwise(before)]
        rows = self._reads[bounds[:-1]] - repeated(self._starts, counts, self._device)
        self._hand_out(rows.to(self._sums[0].device).split(counts), bounds[:-1], bounds[1:])

    def _hand_out(self, rows: Sequence[Tensor], begins: Tensor, ends: Tensor) -> None:
        each = zip(*(total.parts for total in self._sums), strict=True)
        parts = [Part([values for _, values, _ in part], part[0][2]) for part in each]
        counts, first = [len(own) for own in rows], self._sums[0]
        found = row_sums(parts, self._order, begins, ends, counts, first.dtype).to(first.device)
        sizes = [count * total.width for count, total in zip(counts, self._sums, strict=True)]
        for total, own, values in zip(self._sums, rows, found.split(sizes), strict=True):
            total.hold(own, values)

    def _each(self, numbers: Sequence[int], reads: Sequence[int]) -> Tensor:
        return of_columns(numbers, reads, self._device)


def _joined(parts: list[Scaled]) -> Scaled:
    each = [scales.view(-1, *[1] * (ids.dim() - 1)).expand(ids.shape).flatten() for ids, _, scales in parts]
    values = [values.reshape(-1, values.shape[-1]) for _, values, _ in parts]
    return torch.cat([ids.flatten() for ids, _, _ in parts]), torch.cat(values), torch.cat(each)
