"""Several parameters at once, where each alone would cost calls or launches, and a card a wait for each."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Size, Tensor

from dprec.gradients import norms
from dprec.gradients.contributions.base import ROUNDED, Contribution, all_of
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.look_ups import Rows, repeated, without
from dprec.gradients.contributions.outer import Outer
from dprec.gradients.contributions.over_positions import OverPositions
from dprec.gradients.row_sum import RowSum
from dprec_kernels import joint as kernels
from dprec_kernels.ordering import is_among, ordered
from dprec_kernels.paths import answers_at_once, on_card

PART = ROUNDED * torch.finfo(torch.float32).eps  # of a term's length, that rounding may add
JOINT = "(side by side)"
READS = "(one read of each table)"
LITTLE = 1 << 10  # numbers of a parameter
Product: TypeAlias = kernels.Products | kernels.Vectors | kernels.Positions


class Joint:
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
            if len(uses) == 1 and isinstance(use, Dense) and isinstance(out, Tensor) and _small(use, out):
                values.append(use.values.reshape(len(use.values), out.numel()))
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
    """Whether each user's gradient, on a card, is one row."""
    if not isinstance(use, Rows) or answers_at_once(use.ids):
        return False
    return use.ids.shape[1:] == (1,) and use.values.dtype == torch.float32


def _small(use: Dense, out: Tensor) -> bool:
    """Whether these gradients are what is summed, and are summed in float64; on a CPU a copy must cost little."""
    plain = use.summed is None and use.values.dtype == torch.float32 and out.dtype == torch.float64
    return plain and out.numel() > 0 and (not answers_at_once(use.values) or out.numel() <= LITTLE)


def merge_together(
    sums: Mapping[str, RowSum], padding: Mapping[str, Sequence[int]], wanted: Mapping[str, Tensor]
) -> Tensor | int:
    """Merge what was added to these sums, without rows of padding, where each alone would wait for a card.

    A sum of which rows are `wanted`, ascending, has all of these and no others then. Return how many were not added to.
    """
    alike: dict[Hashable, list[str]] = {}
    for name, total in sums.items():
        if total.parts and not answers_at_once(total.parts[0][0]) and all(ids.dim() == 2 for ids, _, _ in total.parts):
            # Alike are uses by the same users, under the very same factors.
            form = tuple((id(scales), values.dtype) for _, values, scales in total.parts)
            alike.setdefault((total.dtype, form, name in wanted, total.device), []).append(name)
    groups = {
        tuple(names): _Together([sums[n] for n in names], [sorted(padding.get(n, ())) for n in names])
        for names in (sorted(own, key=lambda name: width_of(sums[name])) for own in alike.values())
    }
    untouched: Tensor | int = 0
    if groups:
        told = iter(torch.cat([group.cuts for group in groups.values()]).tolist())  # the one wait
        for names, group in groups.items():
            group.merge([next(told) for _ in group.cuts])
            if names[0] in wanted:
                untouched = untouched + group.widen([wanted[name] for name in names])
            group.hand_out()
    return untouched


def only_together(uses: Sequence[Rows], rows: Sequence[Tensor], sizes: Sequence[int]) -> list[Rows]:
    """Return what is left of uses of tables with so many rows, where no others than these may change, in one go.

    >>> reads = [Rows(torch.tensor([[1]]), torch.ones(1, 1, 1)), Rows(torch.tensor([[1, 2]]), torch.ones(1, 2, 1))]
    >>> left = only_together(reads, [torch.tensor([1]), torch.tensor([2])], [3, 4])
    >>> [use.values.flatten().tolist() for use in left]
    [[1.0], [0.0, 1.0]]
    """
    device, starts, reads = uses[0].ids.device, [0, *accumulate(sizes)], [use.ids.shape[1] for use in uses]
    ids = torch.cat([use.ids for use in uses], 1) + repeated(starts, reads, device)
    lost = ~is_among(ids, torch.cat(list(rows)) + repeated(starts, [len(each) for each in rows], device))
    return without(uses, lost)


def width_of(total: RowSum) -> int:
    return total.parts[0][1].shape[2]


class _Together:
    """Sums of rows, the narrowest first, as one. Behind each table's rows stands one for what counts for none of them.

    All that concerns rows is done once, all that concerns their numbers once for each width.
    """

    def __init__(self, sums: Sequence[RowSum], padding: Sequence[Sequence[int]]) -> None:
        self._sums, device = sums, sums[0].parts[0][0].device
        ends = list(accumulate(len(list(own)) for _, own in groupby(map(width_of, sums))))
        self._spans = [slice(*span) for span in pairwise([0, *ends])]  # of the tables of each width
        starts = [0, *accumulate(total.shape[0] + 1 for total in sums)]
        none = torch.tensor([s + row for s, rows in zip(starts, padding, strict=False) for row in rows], device=device)
        numbers: list[list[Tensor]] = [[] for _ in self._spans]
        users: list[list[Tensor]] = [[] for _ in self._spans]
        for parts in zip(*(total.parts for total in sums), strict=True):
            reads = [ids.shape[1] for ids, _, _ in parts]
            spans = [(start, stop - 1) for start, stop in pairwise(starts)]
            columns = torch.tensor([span for span, n in zip(spans, reads, strict=True) for _ in range(n)])
            first, last = columns.T.to(device)
            ids, scales = torch.cat([ids for ids, _, _ in parts], 1) + first, parts[0][2].unsqueeze(1)  # (B, N)
            each = torch.where(is_among(ids, none.long()) | (scales == 0), last, ids)
            for place, own in enumerate(each.split([sum(reads[span]) for span in self._spans], 1)):
                numbers[place].append(own.reshape(-1))
                users[place].append(scales.expand(own.shape).reshape(-1))
        self._before = [0, *accumulate(sum(map(len, own)) for own in numbers)]  # reads of narrower tables
        self._weights = torch.cat([each for own in users for each in own])
        self._reads, self._order = ordered(torch.cat([each for own in numbers for each in own]))
        new = torch.ones_like(self._reads)
        new[1:] = self._reads[1:] != self._reads[:-1]
        self._row = new.cumsum(0)  # (m,) which row a read is of, from 1 on
        self._numbers = starts
        self._rows = self._weights  # until they are merged
        self._values: list[Tensor] = []  # of each width
        self._starts = torch.tensor(starts[:-1], device=device)
        bounds = [bound for start, stop in pairwise(starts) for bound in (start, stop - 1)]
        edges = torch.searchsorted(self._reads, torch.tensor(bounds, device=device))  # (2 tables,)
        self.cuts = torch.cat([torch.cat([new.new_zeros(1), self._row])[edges], edges])

    def merge(self, cuts: Sequence[int]) -> None:
        """Merge, once it is known how many rows, and reads, there are before each table and with it."""
        self._cuts, reads = list(cuts[: len(cuts) // 2]), cuts[len(cuts) // 2 :]
        begins = torch.searchsorted(
            self._row[: reads[-1]], torch.arange(1, self._cuts[-1] + 1, device=self._row.device)
        )
        self._rows = self._reads[begins]
        for span, before in zip(self._spans, self._before, strict=False):
            own, rows, read = (
                self._sums[span],
                self._within(span),
                slice(reads[2 * span.start], reads[2 * span.stop - 1]),
            )
            width, dtype = width_of(own[0]), own[0].dtype
            if rows.start == rows.stop:
                self._values.append(self._weights.new_zeros(0, width, dtype=dtype))
                continue
            joined = (torch.cat(part, 1) for part in zip(*([v for _, v, _ in s.parts] for s in own), strict=True))
            each = torch.cat([values.reshape(-1, width) for values in joined]).double()
            which, starts = self._order[read], begins[rows]
            weights = self._weights[which].double()
            if before:
                which, starts = which - before, starts - read.start
            summed = F.embedding_bag(which, each, starts, mode="sum", per_sample_weights=weights)
            self._values.append(summed.to(dtype))

    def widen(self, wanted: Sequence[Tensor]) -> Tensor:
        """Have these rows of each sum and no others; return how many of them had not been added to."""
        counts = [len(rows) for rows in wanted]
        every = torch.cat(list(wanted)) + repeated(self._numbers, counts, self._rows.device)
        met = is_among(self._rows, every)
        place = torch.where(met, torch.searchsorted(every, self._rows), len(every))
        ends = list(accumulate(counts))
        found = []
        for span, values in zip(self._spans, self._values, strict=True):
            first, last = ends[span.start] - counts[span.start], ends[span.stop - 1]
            own = place[self._within(span)]
            if len(self._spans) > 1:
                own = (own - first).clamp_(max=last - first)  # others fall behind the last
            wide = values.new_zeros(last - first + 1, *values.shape[1:])
            found.append(wide.index_copy_(0, own, values)[:-1])
        self._rows, self._values = every, found
        self._cuts = [cut for last, n in zip(ends, counts, strict=True) for cut in (last - n, last)]
        return len(every) - met.sum()

    def hand_out(self) -> None:
        """Give each sum its rows, where its table is."""
        rows = self._rows - self._starts[torch.searchsorted(self._starts, self._rows, right=True) - 1]
        rows = rows.to(self._sums[0].device)
        for span, values in zip(self._spans, self._values, strict=True):
            there, before = values.to(rows.device), self._within(span).start
            cuts = self._cuts[2 * span.start : 2 * span.stop]
            for each, first, last in zip(self._sums[span], cuts[::2], cuts[1::2], strict=True):
                each.hold(rows[first:last], there[first - before : last - before])

    def _within(self, span: slice) -> slice:
        """Return the rows of these tables, as they are counted now."""
        return slice(self._cuts[2 * span.start], self._cuts[2 * span.stop - 1])


def kernels_fit(losses: Tensor) -> bool:
    """Whether there are kernels for these users' gradients."""
    return len(losses) > 0 and on_card(losses)


def scaled_at_once(
    contributions: Mapping[str, list[Contribution]],
    more: Sequence[Tensor],
    shapes: Mapping[str, Size],
    losses: Tensor,
    law: kernels.Law,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (B,) norms over all parameters and factors, and (2, B) whose factor is 0, and the losses.

    `more` (B,) is what else rounding may have put into the gradients.
    """
    measures = [_measure(uses, len(losses), shapes[name]) for name, uses in contributions.items()]
    beside = [kernels.Measure(squared=off, off=off) for off in more]
    squared, off = kernels.measured([*measures, *beside], losses, PART)
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
    off = norms.rounding(uses, squared)
    return kernels.Measure(squared=squared, off=off if isinstance(off, Tensor) else None)
