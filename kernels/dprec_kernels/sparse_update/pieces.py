"""Sparse updates by torch's own operations."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dprec_kernels import normals
from dprec_kernels.ordering import ordered
from dprec_kernels.paths import host_readable
from dprec_kernels.row_noise import RowNoise
from dprec_kernels.tables import Tables
from dprec_kernels.workspace import workspace

TOGETHER = 32  # users whose reads of a row are added up in the precision of the gradients
FEW = 4  # if at most one read in so many is added up in float64, only those reads are copied
WIDEST = 2048  # the most numbers of a row that a kernel can hold on chip


@dataclass(frozen=True)
class Reads:
    """The rows of a step, and the reads of each."""

    rows: Tensor  # (n,) sorted, each once
    begins: Tensor  # (n,) where the reads of each row begin in `order`; they end where the next one's begin
    order: Tensor  # (m,) places of the reads in the batch, row by row
    users: Tensor  # (m,) the user of each read
    weights: Tensor  # (m,) that user's scale


def merge(rows: Tensor, scales: Tensor) -> Reads:
    """Sort the reads by row; those of a row stay in the order of the batch, so that their sum is always the same."""
    flat, order = ordered(rows.flatten())
    read, counted = flat.unique_consecutive(return_counts=True)
    users = order // max(1, math.prod(rows.shape[1:]))
    begins = counted.cumsum(0) - counted
    weights = scales[users]
    adds = weights != 0
    if host_readable(adds) and bool(adds.all()):
        return Reads(read, begins, order, users, weights)
    kept = adds.nonzero().squeeze(1)
    return Reads(read, torch.searchsorted(flat[kept], read), order[kept], users[kept], weights[kept])


def summed(reads: Reads, values: Tensor, dtype: torch.dtype, owned: bool) -> Tensor:
    """Return the merged gradients of all rows (n, d); `owned` tells whether each read's user is known.

    They are added up in float64 for a row that many users read, or one user more than once. Terms of one user may
    cancel, and their rounding would otherwise depend on other users who read the row.
    """
    each, which = without_repeats(values, reads)
    sums = _bagged(which, each.to(dtype), reads.begins, reads.weights)
    counts = torch.diff(reads.begins, append=reads.begins.new_tensor([len(which)]))
    wide = (counts > TOGETHER) | _read_again(reads, counts) if owned else counts > 1
    places = wide.nonzero().squeeze(1)
    if not len(places):
        return sums
    own = wide.repeat_interleave(counts)
    which, counts = which[own], counts[places]
    if FEW * len(which) < len(each):
        each, which = each[which], torch.arange(len(which), device=which.device)
    exact = _bagged(which, each.double(), counts.cumsum(0) - counts, reads.weights[own])
    return sums.index_copy_(0, places, exact.to(dtype))


def _read_again(reads: Reads, counts: Tensor) -> Tensor:
    """Return (n,) whether a user reads each row more than once; a user's reads of a row are adjacent."""
    again = torch.zeros(len(reads.users) + 1, dtype=torch.int64, device=counts.device)
    torch.eq(reads.users[1:], reads.users[:-1], out=again[1:-1])
    again.index_fill_(0, reads.begins.clamp(max=len(reads.users)), 0)  # beside the last read of another row
    before = again.cumsum(0)
    return before[reads.begins + (counts - 1).clamp(min=0)] > before[reads.begins]


def step_rows(
    table: Tensor, rows: Tensor, gradient: Tensor, rule: SGD, std: float = 0.0, source: normals.Source | None = None
) -> None:
    """Step rows (n,) by their gradients (n, d); with noise, in pieces that fit a cache."""
    if source is None:
        rule.update(table, rows, gradient)
        return
    for part in normals.parts(*gradient.shape):
        own = gradient[part]
        noisy = normals.draw(source, rows[part], own.to(table.dtype)).mul_(std).add_(own)
        rule.update(table, rows[part], noisy)


def step_tables(
    tables: Tables,
    which: Tensor,
    rows: Tensor,
    values: Tensor,
    starts: Tensor,
    rule: SGD,
    std: float = 0.0,
    source: RowNoise | None = None,
) -> None:
    """Step rows (n,) of the tables that `which` (n,) numbers, one table after the other."""
    for place, table in enumerate(tables.each):
        there = (which == place).nonzero().squeeze(1)
        columns = torch.arange(table.shape[1], device=rows.device)
        own = None if source is None else replace(source, stream=source.stream + place)
        step_rows(table, rows[there], values[starts[there].unsqueeze(1) + columns], rule, std, own)


def _bagged(which: Tensor, each: Tensor, begins: Tensor, weights: Tensor) -> Tensor:
    return F.embedding_bag(which, each, begins, mode="sum", per_sample_weights=weights.to(each.dtype))


def without_repeats(values: Tensor, reads: Reads) -> tuple[Tensor, Tensor]:
    """Return the values as a matrix, and the number of its row for each read."""
    width = values.shape[-1]
    if values.dim() == 3 and values.stride(1) == 0 and values.shape[1] > 0:
        return values[:, 0], reads.users
    return values.reshape(-1, width), reads.order


# Plain SGD on rows of a table, given their gradients. Other rows do not change.


@dataclass(frozen=True)
class SGD:
    """w ← w - lr · (g + decay · w)."""

    lr: float
    decay: float = 0.0

    def update(self, table: Tensor, rows: Tensor, gradient: Tensor) -> None:
        """Change table[rows] in place; `index_add_` with a factor takes three times as long on a CPU."""
        weights = torch.index_select(table, 0, rows, out=workspace.take("weights", (len(rows), table.shape[1]), table))
        if self.decay:
            weights.mul_(1 - self.lr * self.decay)
        table.index_copy_(0, rows, weights.add_(gradient, alpha=-self.lr))
