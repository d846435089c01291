"""Rows of several tables, merged in one go: a card is asked once how many rows there are, not once for each table."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.gradients.row_sum import RowSum
from dprec_kernels.ordering import is_among, ordered
from dprec_kernels.paths import answers_at_once


def merge_together(sums: Mapping[str, RowSum], padding: Mapping[str, Sequence[int]]) -> None:
    """Merge what was added to these sums, without rows of padding, where each alone would wait for a card."""
    alike: dict[Hashable, list[str]] = {}
    for name, total in sums.items():
        if total.parts and not answers_at_once(total.parts[0][0]) and all(ids.dim() == 2 for ids, _, _ in total.parts):
            # Alike are uses by the same users, under the very same factors.
            form = tuple((id(scales), values.shape[2], values.dtype) for _, values, scales in total.parts)
            alike.setdefault((total.dtype, form), []).append(name)
    groups = [
        _Together([sums[n] for n in names], [sorted(padding.get(n, ())) for n in names]) for names in alike.values()
    ]
    if groups:
        told = iter(torch.cat([group.cuts for group in groups]).tolist())  # the one wait
        for group in groups:
            group.merge([next(told) for _ in group.cuts])


def spread(rows: Tensor, touched: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the values at `rows`, of those at rows `touched`, and how many were met; nothing asks a card for it.

    >>> spread(torch.tensor([2, 5]), torch.tensor([1, 5]), torch.tensor([[1.0], [3.0]]))
    (tensor([[0.],
            [3.]]), tensor(1))
    """
    met = is_among(touched, rows)
    place = torch.where(met, torch.searchsorted(rows, touched), len(rows))  # others fall behind the last
    return values.new_zeros(len(rows) + 1, *values.shape[1:]).index_copy_(0, place, values)[:-1], met.sum()


class _Together:
    """Sums of rows of equal width as one sum. Behind each table's rows stands one for what counts for none of them."""

    def __init__(self, sums: Sequence[RowSum], padding: Sequence[Sequence[int]]) -> None:
        self._sums, device = sums, sums[0].parts[0][0].device
        starts = [0, *accumulate(total.shape[0] + 1 for total in sums)]
        none = torch.tensor([s + row for s, rows in zip(starts, padding, strict=False) for row in rows], device=device)
        numbers, users = [], []
        for parts in zip(*(total.parts for total in sums), strict=True):
            reads = [ids.shape[1] for ids, _, _ in parts]
            spans = [(start, stop - 1) for start, stop in pairwise(starts)]
            columns = torch.tensor([span for span, n in zip(spans, reads, strict=True) for _ in range(n)])
            first, last = columns.T.to(device)
            ids, scales = torch.cat([ids for ids, _, _ in parts], 1) + first, parts[0][2].unsqueeze(1)  # (B, N)
            numbers.append(torch.where(is_among(ids, none.long()) | (scales == 0), last, ids).flatten())
            users.append(scales.expand(ids.shape).flatten())
        self._weights = torch.cat(users)
        self._reads, self._order = ordered(torch.cat(numbers))
        new = torch.ones_like(self._reads)
        new[1:] = self._reads[1:] != self._reads[:-1]
        self._row = new.cumsum(0)  # (m,) which row a read is of, from 1 on
        self._starts = torch.tensor(starts[:-1], device=device)
        bounds = [bound for start, stop in pairwise(starts) for bound in (start, stop - 1)]
        edges = torch.searchsorted(self._reads, torch.tensor(bounds, device=device))  # (2 tables,)
        self.cuts = torch.cat([torch.cat([new.new_zeros(1), self._row])[edges], edges[-1:]])

    def merge(self, cuts: Sequence[int]) -> None:
        """Give each sum its rows, once it is known how many there are before each table and in it."""
        *cuts, reads = cuts
        total, width = self._sums[0], self._sums[0].parts[0][1].shape[2]
        begins = torch.searchsorted(self._row[:reads], torch.arange(1, cuts[-1] + 1, device=self._row.device))
        rows, sums = self._reads[begins], self._weights.new_zeros(0, width, dtype=total.dtype)
        rows = rows - self._starts[torch.searchsorted(self._starts, rows, right=True) - 1]
        if len(begins):
            joined = (
                torch.cat(part, 1) for part in zip(*([v for _, v, _ in s.parts] for s in self._sums), strict=True)
            )
            each = torch.cat([values.reshape(-1, width) for values in joined]).double()
            which = self._order[:reads]
            weights = self._weights[which].double()
            sums = F.embedding_bag(which, each, begins, mode="sum", per_sample_weights=weights).to(total.dtype)
        for each_sum, first, last in zip(self._sums, cuts[::2], cuts[1::2], strict=True):
            each_sum.hold(rows[first:last], sums[first:last])
