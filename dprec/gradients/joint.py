"""Several parameters at once, where each alone would cost calls or launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Size, Tensor

from dprec.gradients import norms
from dprec.gradients.contributions.base import Contribution, all_of
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.look_ups import Rows
from dprec.gradients.contributions.outer import Outer
from dprec.gradients.contributions.over_positions import OverPositions
from dprec.gradients.row_sum import RowSum
from dprec_kernels import joint as kernels
from dprec_kernels.paths import host_readable, on_card

PART = 4 * torch.finfo(torch.float32).eps  # of a term's length, that rounding may add
JOINT = "(side by side)"
READS = "(one read of each table)"
LITTLE = 1 << 8  # numbers of a parameter that may be copied on a CPU
Product: TypeAlias = kernels.Products | kernels.Vectors | kernels.Positions


class FusedParameters:
    """The contributions to each parameter, and where they are added up, with a single one for all that are small.

    A norm over all parameters is what is wanted, and that of vectors side by side is the same. So are rows `measured`
    that a user reads of several tables, one of each; they are added to the tables apart.
    """

    def __init__(self, contributions: Mapping[str, list[Contribution]], sums: Mapping[str, Tensor | RowSum]) -> None:
        self.contributions, self.sums = dict(contributions), dict(sums)
        self._apart: list[Tensor] = []
        values = []
        for name, uses in contributions.items():
            out, use = sums[name], uses[0]
            if len(uses) == 1 and type(use) is Dense and isinstance(out, Tensor) and _small(use, out):
                values.append(use.values.flatten(1) if use.values.dim() > 1 else use.values.unsqueeze(1))
                self._apart.append(out)
                del self.contributions[name]
        if values:
            whole = values[0] if len(values) == 1 else torch.cat(values, 1)
            self.contributions[JOINT] = [Dense(whole)]
            self.sums[JOINT] = torch.empty(whole.shape[1], dtype=torch.float64, device=whole.device)
        self.measured = dict(self.contributions)
        reads = {name: uses[0] for name, uses in self.contributions.items() if len(uses) == 1 and _one_read(uses[0])}
        if len(reads) > 1:
            rows = [use for use in reads.values() if isinstance(use, Rows)]
            side_by_side = torch.cat([use.values.reshape(len(use.ids), 1, -1) for use in rows], 2)
            self.measured = {name: uses for name, uses in self.measured.items() if name not in reads}
            self.measured[READS] = [Rows(rows[0].ids, side_by_side)]

    def totals(self, name: str) -> list[Tensor]:
        """Return the sums of parameters that a sum stands for."""
        total = self.sums[name]
        return self._apart if name == JOINT else [total] if isinstance(total, Tensor) else []


def add_apart(totals: Sequence[Tensor], whole: Sequence[Tensor]) -> None:
    """Add sums that lie side by side in tensors to those of single parameters, in this order."""
    waiting, parts = iter(totals), []
    for each in whole:
        own, left = [], each.numel()
        while left:
            own.append(next(waiting).numel())
            left -= own[-1]
        parts += each.reshape(-1).split(own)
    torch._foreach_add_(list(totals), [p.view(out.shape) for p, out in zip(parts, totals, strict=True)])


def _one_read(use: Contribution) -> bool:
    """Whether each user's gradient, on a GPU, is one row."""
    if not isinstance(use, Rows) or host_readable(use.ids):
        return False
    return use.ids.shape[1:] == (1,) and use.values.dtype == torch.float32


def _small(use: Dense, out: Tensor) -> bool:
    """Whether these gradients are what is summed, and are summed in float64; on a CPU a copy must cost little."""
    if use.values.dtype is not torch.float32 or out.dtype is not torch.float64:
        return False
    return 0 < out.numel() <= LITTLE or not (host_readable(out) or out.numel() == 0)


def kernels_fit(losses: Tensor) -> bool:
    """Whether there are kernels for these users' gradients."""
    return len(losses) > 0 and on_card(losses)


def scaled_at_once(
    contributions: Mapping[str, list[Contribution]],
    shapes: Mapping[str, Size],
    losses: Tensor,
    law: kernels.Law,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (B,) norms over all parameters and factors, and (2, B) whose factor is 0, and the losses."""
    measures = [_measure(uses, len(losses), shapes[name]) for name, uses in contributions.items()]
    squared, off = kernels.measured(measures, losses, PART)
    return kernels.scaled(squared, off, len(measures), losses, law)


def product_of(uses: Sequence[Contribution], total: object) -> Product | None:
    """Return what is scaled and summed, where a kernel does so for several parameters."""
    if not isinstance(total, Tensor) or total.dtype != torch.float64 or not total.numel() or not on_card(total):
        return None
    first, *rest = uses
    others = all_of(Outer, rest)
    if isinstance(first, Outer) and others is not None:
        term = first.joined(others)
        return term if term.left.dtype == term.right.dtype == torch.float32 else None
    if isinstance(first, OverPositions) and not rest:
        own = first.lines()
        return own if isinstance(own, kernels.Positions) else None
    if isinstance(first, Dense) and not rest and first.values.dtype == torch.float32:
        return kernels.Vectors(first.values.reshape(len(first.values), 1, -1))
    return None


def _measure(uses: Sequence[Contribution], users: int, shape: Size) -> kernels.Measure:
    first, *rest = uses
    terms = [term for use in uses if (term := use.lines()) is not None]
    every = len(terms) == len(uses)
    maps = all_of(Outer, rest)
    if every and isinstance(first, Outer) and maps is not None:
        return kernels.Measure([first.joined(maps)])
    if every and not rest and isinstance(first, OverPositions):
        return kernels.Measure(terms)
    if every and not rest and isinstance(first, Dense):
        return kernels.Measure(terms, rounds=False)
    if every and not rest and isinstance(first, Rows) and first.ids.shape[1] == 1:
        return kernels.Measure(terms)
    squared = norms.squared_norms(uses, users, shape)
    if every:
        return kernels.Measure(terms, squared)
    length = norms.terms(uses)
    return kernels.Measure(squared=squared, off=None if length is None else PART * length)
