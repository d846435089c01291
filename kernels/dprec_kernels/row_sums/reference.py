"""The reference: adds each read to its row, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """A micro-batch's reads of each table, and the factor of each user's reads."""

    values: Sequence[Tensor]  # (B, n, d) of each table
    scales: Tensor  # (B,)


def row_sums(
    parts: Sequence[Part], order: Tensor, starts: Tensor, stops: Tensor, counts: Sequence[int], dtype: torch.dtype
) -> Tensor:
    """Return the sums of the rows of all tables."""
    nobody, place = sum(counts), torch.arange(len(order), device=order.device)
    row = torch.searchsorted(stops, place, right=True)  # the first that has not ended
    begun = place >= torch.cat([starts, place.new_full((1,), len(order))])[row]
    row_of = torch.full_like(order, nobody).index_copy_(0, order, torch.where(begun, row, nobody))
    totals = [
        torch.zeros(count + 1, values.shape[2], dtype=torch.float64, device=order.device)  # the last is nobody's
        for count, values in zip(counts, parts[0].values, strict=True)
    ]
    reads = [len(part.scales) * sum(values.shape[1] for values in part.values) for part in parts]
    for part, rows in zip(parts, row_of.split(reads), strict=True):
        columns = rows.view(len(part.scales), -1).split([values.shape[1] for values in part.values], 1)
        scales = part.scales.double().view(-1, 1, 1)
        for total, first, values, own in zip(totals, [0, *accumulate(counts)], part.values, columns, strict=False):
            each = torch.where(scales != 0, values.double() * scales, 0.0)
            there = torch.where(own == nobody, len(total) - 1, own - first)
            total.index_add_(0, there.flatten(), each.flatten(0, 1))
    return torch.cat([total[:-1].flatten() for total in totals]).to(dtype)
