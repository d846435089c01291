"""Several parameters at once, where each alone would cost calls or launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeAlias, cast

import torch
from torch import Size, Tensor

from dprec.gradients import norms
from dprec.gradients.contributions.base import Contribution, all_of
from dprec.gradients.contributions.dense import Dense, Stacked
from dprec.gradients.contributions.look_ups import Rows
from dprec.gradients.contributions.outer import Maps, Outer
from dprec.gradients.contributions.over_positions import OverPositions
from dprec.gradients.row_sum import RowSum
from dprec_kernels import joint as kernels
from dprec_kernels.paths import host_readable, on_gpu
from dprec_kernels.products import multiply_each
from dprec_kernels.workspace import workspace

PART = 4 * torch.finfo(torch.float32).eps  # of a term's length, that rounding may add
JOINT = "(side by side)"
READS = "(one read of each table)"
LITTLE = 1 << 12  # numbers of a parameter that may be copied on a CPU
Product: TypeAlias = kernels.Products | kernels.Vectors | kernels.Positions


class FusedParameters:
    """The contributions to each parameter, and where they are added up, with a single one for several of a kind.

    A norm over all parameters is what is wanted, and that of vectors side by side is the same: of gradients that are
    small, and on a CPU of those of linear maps on long histories, which are built there. Linear maps of the same sizes
    are stacked there, too. So are rows `measured` that a user reads of several tables, one of each.
    """

    def __init__(
        self, contributions: Mapping[str, list[Contribution]], sums: Mapping[str, Tensor | RowSum], losses: Tensor
    ) -> None:
        self.contributions, self.sums = dict(contributions), dict(sums)
        self._apart: dict[str, list[Tensor]] = {}  # the sums of the parameters that one stands for
        self._sizes: list[int] = []  # of those that are side by side
        self._lay_side_by_side(host_readable(losses))
        self.measured = dict(self.contributions)
        reads = {name: uses[0] for name, uses in self.contributions.items() if len(uses) == 1 and _one_read(uses[0])}
        if len(reads) > 1:
            rows = [use for use in reads.values() if isinstance(use, Rows)]
            side_by_side = torch.cat([use.values.reshape(len(use.ids), 1, -1) for use in rows], 2)
            self.measured = {name: uses for name, uses in self.measured.items() if name not in reads}
            self.measured[READS] = [Rows(rows[0].ids, side_by_side)]

    def add_apart(self, done: Mapping[str, Tensor]) -> None:
        """Add sums that are `done`, and those that stand for several parameters, to those of each parameter."""
        totals, parts = [], []
        for name, own in self._apart.items():
            whole = self.sums[name]
            assert isinstance(whole, Tensor)
            if name in done:
                whole = done[name].view(whole.shape)
            totals += own
            if name != JOINT:
                parts += [part.view(total.shape) for part, total in zip(whole.unbind(), own, strict=True)]
            else:
                each = torch.split_with_sizes(whole, self._sizes)
                parts += [part.view(t.shape) if t.ndim != 1 else part for part, t in zip(each, own, strict=True)]
        for name in done.keys() - self._apart.keys():
            total = self.sums[name]
            assert isinstance(total, Tensor)
            totals.append(total)
            parts.append(done[name].view(total.shape))
        if totals:
            torch._foreach_add_(totals, parts)

    def _lay_side_by_side(self, on_host: bool) -> None:
        small: dict[str, Tensor] = {}
        alike: defaultdict[Hashable, dict[str, Outer]] = defaultdict(dict)
        for name, (first, *rest) in self.contributions.items():
            out = self.sums[name]
            if type(out) is not Tensor or out.dtype is not torch.float64:
                continue
            if type(first) is Dense and not rest and first.values.dtype is torch.float32:
                flat = first.values if first.values.ndim == 2 else first.values.reshape(-1, out.numel())
                if flat.shape[1] <= LITTLE or not on_host:  # on a CPU a copy must cost little
                    small[name] = flat
            elif type(first) is Outer and on_host and first.left.dtype is first.right.dtype is torch.float32:
                maps = all_of(Outer, rest) if rest else []
                if maps is not None:
                    whole = first.joined(maps) if maps else first
                    alike[whole.left.shape, whole.right.shape][name] = whole
        for number, maps_of in enumerate(alike.values()):
            each = list(maps_of.values())
            first = each[0]
            if first.is_smaller_built:
                values = _built(each, number)
                self._replace(maps_of, f"(as {next(iter(maps_of))})", Stacked(values), (len(each), values.shape[2]))
            elif len(each) > 1:
                sides = torch.stack([own.left for own in each]), torch.stack([own.right for own in each])
                shape = len(each), first.left.shape[2], first.right.shape[2]
                self._replace(maps_of, f"(as {next(iter(maps_of))})", Maps(*sides), shape)
        if small:
            every = next(iter(small.values())) if len(small) == 1 else torch.cat(list(small.values()), 1)
            self._sizes = [own.shape[1] for own in small.values()]
            self._replace(small, JOINT, Dense(every), every.shape[1:])

    def _replace(self, names: Iterable[str], by: str, use: Contribution, shape: Sequence[int]) -> None:
        totals = cast("list[Tensor]", [self.sums[name] for name in names])
        for name in names:
            del self.contributions[name]
        self._apart[by], self.contributions[by] = totals, [use]
        self.sums[by] = totals[0].new_zeros(shape)


def _built(maps: Sequence[Outer], number: int) -> Tensor:
    """Return (n, B, o i) the users' gradients of a group of linear maps of the same sizes, by its number."""
    (users, _, outputs), inputs = maps[0].left.shape, maps[0].right.shape[2]
    values = workspace.take(f"gradients of group {number}", (len(maps), users, outputs, inputs), maps[0].left)
    for own, use in zip(values.unbind(), maps, strict=True):
        multiply_each(use.left.mT, use.right, own)
    return values.flatten(2)


def _one_read(use: Contribution) -> bool:
    """Whether each user's gradient, on a GPU, is one row."""
    if not isinstance(use, Rows) or host_readable(use.ids):
        return False
    return use.ids.shape[1:] == (1,) and use.values.dtype == torch.float32


def kernels_fit(losses: Tensor) -> bool:
    """Whether there are kernels for these users' gradients."""
    return losses.shape[0] > 0 and on_gpu(losses)


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
    if not isinstance(total, Tensor) or total.dtype != torch.float64 or not total.numel() or not on_gpu(total):
        return None
    first, *rest = uses
    others = all_of(Outer, rest)
    if isinstance(first, Outer) and others is not None:
        term = first.joined(others).lines()
        return term if isinstance(term, kernels.Products) else None
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
        whole = first.joined(maps).lines()
        assert whole is not None
        return kernels.Measure([whole])
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
    return kernels.Measure(squared=squared, off=None if length is None else PART * length.double())
