"""Softmaxes of users' positions, in which a user's bits do not depend on other users.

Positions are processed in passes of a few users each, over the same tiles of items in every pass. A user's last target
decides how many of the user's positions take part. A processor computes the end of a tensor differently, so a pass is
filled up with positions of zeros to a round number. Exponentials are kept while there is room, and are otherwise
computed again from the same numbers in the same tiles: the gradient is the same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter

import torch
from torch import Tensor

from dprec_kernels.catalogue_softmax import pieces
from dprec_kernels.catalogue_softmax.pieces import Kept, room_for
from dprec_kernels.processor import round_up
from dprec_kernels.products import multiply, multiply_each
from dprec_kernels.wide_sum import add_product
from dprec_kernels.workspace import workspace


@dataclass
class Pass:
    """A few users whose positions are processed together."""

    users: list[int]
    lengths: list[int]  # how many positions of each
    first: int  # where they begin among the rows of all passes
    count: int  # positions, and zeros behind them

    def add_places(self, places: list[int], width: int, nobodys: int) -> None:
        """Append the places of these positions among all users', of `width` each, then `nobodys` for the rest."""
        for user, length in zip(self.users, self.lengths, strict=True):
            places += range(user * width, user * width + length)
        places += [nobodys] * (self.first + self.count - len(places))


@dataclass
class UserSoftmaxes:
    """The parts of the gradients of (B, T) positions. Rows (P,) are those that take part, pass by pass."""

    hidden: Tensor  # (B, T, d), zero at positions without a target
    table: Tensor  # (items, d)
    target: Tensor  # (B, T)
    padding: int
    log_total: Tensor  # (B, T): log Σ exp of the scores, ∞ at positions without a target
    missed: Tensor  # (B, T): 1 minus the probability of the target
    products: Tensor | None  # (B, T, T): ⟨q_t, q_s⟩ of a user's positions, q_t the softmax without its own target
    order: Tensor  # (P,): the position of each row; B * T for rows of no user
    shifts: Tensor  # (tiles, P): what was subtracted from the scores
    passes: list[Pass]
    kept: Kept | None  # exponentials of the first rows, if there was room
    rows: Tensor  # (P, d): the hidden vector of each row; zero for rows of no user
    prepared: tuple[Tensor, list[Tensor], Tensor] | None = None  # for the last weight: factors and what targets lose

    def forget(self, lost: Tensor) -> None:
        """Make all numbers of the users in this (B,) mask finite, and their gradients zero."""
        self.prepared = self.kept = None
        self.shifts = self.shifts.masked_fill(self._in_rows(lost.unsqueeze(1).expand(self.target.shape), False), 0.0)
        self.hidden = self.hidden.masked_fill(lost.view(-1, 1, 1), 0.0)
        self.rows = self._in_rows(self.hidden, 0.0)
        self.log_total = self.log_total.masked_fill(lost.unsqueeze(1), float("inf"))
        self.missed = self.missed.masked_fill(lost.unsqueeze(1), 0.0)
        if self.products is not None:
            self.products = self.products.masked_fill(lost.view(-1, 1, 1), 0.0)

    def add_gradient(self, out: Tensor, weight: Tensor) -> None:
        """Add the gradient of Σ weight · loss, for weight (B, T), to `out` (items, d), which may be wider."""
        out.index_add_(0, self.target.flatten(), self.targets(weight).flatten(0, 1).to(out.dtype), alpha=-1.0)
        rights, kept = self._multipliers(weight), 0 if self.kept is None else self.kept.positions
        for tile, (items, right) in enumerate(zip(self._tiles, rights, strict=True)):
            if self.kept is not None:
                add_product(out[items], self.kept.tile(items), right[:kept])
            for own in self.passes:
                if own.first >= kept and bool(right[own.first : own.first + own.count].any()):
                    again = self._again(own, tile, items)
                    add_product(out[items], again, right[own.first : own.first + own.count])

    def write_gradients(self, out: Tensor, users: slice, weight: Tensor) -> None:
        """Overwrite out (b, items, d) with these users' own gradients, for weight (B, T)."""
        rights, tiles, kept = self._multipliers(weight), self._tiles, self.kept
        for gradient, user in zip(out.unbind(), range(weight.shape[0])[users], strict=True):
            own, first, length = self.homes[user]
            for tile, items in enumerate(tiles):
                if kept is not None and own.first < kept.positions:
                    exponentials = kept.tile(items, first, length)
                else:
                    exponentials = self._again(own, tile, items)[first - own.first :][:length]
                part = gradient if len(tiles) == 1 else gradient[items]
                multiply_each(exponentials.T, rights[tile][first : first + length], part)
        target, taken = self.target[users], self.targets(weight)[users]
        if out.shape[0] > 1:
            target = target + torch.arange(0, out.shape[0] * out.shape[1], out.shape[1], device=out.device).unsqueeze(1)
        out.view(-1, out.shape[2]).index_add_(0, target.flatten(), taken.flatten(0, 1), alpha=-1.0)

    def targets(self, weight: Tensor) -> Tensor:
        """Return (B, T, d) what is subtracted from the row of each position's target, for weight (B, T)."""
        self._multipliers(weight)
        assert self.prepared is not None
        return self.prepared[2]

    def _multipliers(self, weight: Tensor) -> list[Tensor]:
        """Return, for each tile, the factors (P, d) of the exponentials."""
        if self.prepared is None or self.prepared[0] is not weight:
            hidden = self.rows * self._in_rows(weight, 0.0).unsqueeze(1)
            factors = (self.shifts - self._in_rows(self.log_total, float("inf"))).exp_()
            taken = self.hidden * (weight * self.missed).unsqueeze(2)
            self.prepared = weight, [hidden * each for each in factors.unsqueeze(2).unbind()], taken
        return self.prepared[1]

    def _in_rows(self, values: Tensor, nobodys: float) -> Tensor:
        """Return (P, …) the values (B, T, …) of each row's position."""
        flat = values.flatten(0, 1)
        return torch.cat([flat, flat.new_full((1, *flat.shape[1:]), nobodys)])[self.order]

    @cached_property
    def homes(self) -> dict[int, tuple[Pass, int, int]]:
        """Each user's pass, first row, and number of rows."""
        return {
            user: (own, own.first + first, length)
            for own in self.passes
            for user, first, length in zip(own.users, accumulate(own.lengths, initial=0), own.lengths, strict=False)
        }

    @property
    def _tiles(self) -> Sequence[slice]:
        return pieces.tiles(self.table.shape[0])

    def _again(self, own: Pass, tile: int, items: slice) -> Tensor:
        """Return exp(score - shift) of a pass, as the forward pass computed it."""
        rows = slice(own.first, own.first + own.count)
        places, hidden = self.order[rows], self.rows[rows]
        target = torch.cat([self.target.flatten(), self.target.new_full((1,), self.padding)])[places]
        scores = workspace.take("scores", (own.count, items.stop - items.start), hidden)
        multiply(hidden, self.table[items].T, scores)
        met = ((target >= items.start) & (target < items.stop)).nonzero().squeeze(1)
        pieces.leave_out(scores, items, self.padding, met * scores.shape[1] + target[met] - items.start)
        return scores.sub_(self.shifts[tile, rows].unsqueeze(1)).exp_()


def forward(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int, longest: int, keep: bool = True
) -> tuple[Tensor, Tensor, UserSoftmaxes]:
    """Return the loss (B, T) of hidden (B, T, d), its slope d loss / d hidden, and the softmaxes.

    If T is at most `longest`, the softmaxes have their products. With `keep`, they keep exponentials if there is room.
    """
    users, width, dim = hidden.shape
    nobodys, there = users * width, target != padding
    # Values at positions without a target must not affect others: they need not be finite.
    hidden = hidden.masked_fill(~there.unsqueeze(2), 0.0)
    lengths = (there * torch.arange(1, width + 1, device=hidden.device)).amax(1).tolist() if width else []
    parts = passes(lengths, width, table.shape[0], width <= longest)
    places: list[int] = []
    for own in parts:
        own.add_places(places, width, nobodys)
    order = torch.tensor(places, dtype=torch.int64, device=hidden.device)
    products = hidden.new_zeros(users, width, width) if width <= longest else None
    found = UserSoftmaxes(hidden, table, target, padding, hidden, hidden, products, order, hidden, parts, None, hidden)
    wanted = found._in_rows(target, padding)
    found.order = order = order.where(wanted != padding, nobodys)
    found.rows = found._in_rows(hidden, 0.0)
    loss, log_total, missed, total = torch.zeros(4, nobodys + 1, dtype=hidden.dtype, device=hidden.device).unbind()
    slope = hidden.new_zeros(nobodys + 1, dim)
    log_total.fill_(float("inf"))
    if parts:
        counts, over = [own.count for own in parts], found._tiles
        found.kept = room_for(counts, table.shape[0], hidden) if keep else None
        pairs = [] if products is None else [list(_pairs(own, products)) for own in parts]
        of_rows = pieces.passes_over_items(
            found.rows, table, wanted, padding, over, counts, found.kept,
            [[(where, squares) for where, squares, _ in each] for each in pairs],
        )  # fmt: skip
        for out, each in (
            (loss, of_rows.loss), (log_total, of_rows.log_total), (missed, of_rows.missed), (slope, of_rows.slope),
            (total, of_rows.total.reciprocal()),
        ):  # fmt: skip
            out.index_copy_(0, order, each)
        found.shifts = of_rows.shifts
        for _, squares, same in chain.from_iterable(pairs):
            products[same, : squares.shape[1], : squares.shape[1]] = squares  # type: ignore[index]
        if products is not None:
            pieces.rescale_pairs(products, total[:-1].view(users, width, 1))
    else:
        found.shifts = hidden.new_zeros(1, 0)
    found.log_total, found.missed = log_total[:-1].view(users, width), missed[:-1].view(users, width)
    return loss[:-1].view(users, width), slope[:-1].view(users, width, dim), found


def _pairs(own: Pass, products: Tensor) -> Iterator[tuple[slice, Tensor, list[int]]]:
    """Yield positions of users with equal numbers of them, room for their products, and the users."""
    first = 0
    for length, same in groupby(zip(own.users, own.lengths, strict=True), key=itemgetter(1)):
        users = [user for user, _ in same]
        where = slice(first, first + length * len(users))
        if length:
            yield where, products.new_zeros(len(users), length, length), users
        first = where.stop


def passes(lengths: Sequence[int], width: int, items: int, rounded: bool) -> list[Pass]:
    """Divide users into passes, the longest first, with about as many positions each as fit a cache.

    Products are computed for users of one length at a time, so lengths are `rounded` up, to at most `width`.

    >>> [(own.users, own.lengths) for own in passes([3, 9, 4], 9, 50, rounded=False)]
    [([1, 2, 0], [9, 4, 3])]
    """
    each = [more if (more := _rounded(length)) < width else width for length in lengths] if rounded else lengths
    order = sorted(range(len(each)), key=each.__getitem__, reverse=True)
    most, taken, begins = pieces.PIECE // min(pieces.ITEMS, items), 0, [0]
    for place, user in enumerate(order):
        if taken and taken + each[user] > most:
            begins.append(place)
            taken = 0
        taken += each[user]
    found: list[Pass] = []
    first = 0
    for begin, end in pairwise([*begins, len(order)] if order else []):
        own = [each[user] for user in order[begin:end]]
        found.append(Pass(order[begin:end], own, first, round_up(max(1, sum(own)))))
        first += found[-1].count
    return found


@cache
def _rounded(length: int) -> int:
    """Round up to a multiple of a power of two that is between a quarter and an eighth of the length.

    >>> [_rounded(length) for length in (0, 1, 7, 9, 17, 33)]
    [0, 1, 7, 10, 20, 40]
    """
    step = 1 << max(0, length.bit_length() - 3)
    return -(-length // step) * step
