"""The softmaxes of users' positions, such that a user's numbers have the same bits whoever else is there.

Positions go through passes of a few users each, over the same tiles of items in every pass. How many of a user's
positions take part follows from that user's last target. What a processor computes many at a time it computes otherwise
at a tensor's end, so a pass has a round number of positions: those behind the users' own are zeros. Exponentials are
kept while there is room, and are otherwise computed again from the same numbers in the same tiles: the gradient is the
same, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, groupby
from operator import itemgetter

import torch
from torch import Tensor

from dprec_kernels.catalogue_softmax import pieces
from dprec_kernels.catalogue_softmax.kept import Kept, Room
from dprec_kernels.exponentials import exp_, round_up
from dprec_kernels.products import multiply, multiply_each
from dprec_kernels.wide_sum import WideProduct
from dprec_kernels.workspace import workspace

CPU = torch.device("cpu")
WIDEST = 1  # tiles are as wide as those of one position, whatever the number of positions


@dataclass
class Pass:
    """A few users, of `width` positions each, whose own ones went over the items together."""

    width: int
    device: torch.device
    users: list[int]
    lengths: list[int]  # how many positions of each
    kept: Kept | None  # their exponentials, where there was room

    @property
    def starts(self) -> list[int]:
        """Where each user's positions begin."""
        return list(accumulate(self.lengths[:-1], initial=0))

    @cached_property
    def places(self) -> Tensor:
        """Where these positions lie among all users'."""
        begins = [user * self.width for user in self.users]
        each = [place for at, n in zip(begins, self.lengths, strict=True) for place in range(at, at + n)]
        return torch.tensor(each, dtype=torch.int64, device=self.device)


@dataclass
class UserSoftmaxes:
    """What the gradients of (B, T) positions are made of."""

    hidden: Tensor  # (B, T, d), zero at positions without a target
    table: Tensor  # (items, d)
    target: Tensor  # (B, T)
    padding: int
    log_total: Tensor  # (B, T): log Σ exp of the scores, ∞ at positions without a target
    shifts: Tensor  # (tiles, B, T): what was taken off the scores
    passes: list[Pass]
    products: Tensor | None  # (B, T, T): ⟨p_t, p_s⟩ of the softmaxes of a user's positions

    def forget(self, lost: Tensor) -> None:
        """Make everything of the users in this (B,) mask finite, and their gradients zero."""
        gone = set(lost.nonzero().flatten().tolist())
        for own in self.passes:
            if gone.intersection(own.users):
                own.kept = None
        self.__dict__.pop("_factors", None)
        self.hidden = self.hidden.masked_fill(lost.view(-1, 1, 1), 0.0)
        self.log_total = self.log_total.masked_fill(lost.unsqueeze(1), float("inf"))
        self.shifts = self.shifts.masked_fill(lost.view(1, -1, 1), 0.0)
        if self.products is not None:
            self.products = self.products.masked_fill(lost.view(-1, 1, 1), 0.0)

    def add_gradient(self, out: Tensor, weight: Tensor) -> None:
        """Add the gradient of Σ weight · loss, for weight (B, T), to `out` (items, d), which may be wider."""
        weighted = self._weighted(self.hidden, weight, self.target).flatten(0, 1)
        out.index_add_(0, self.target.flatten(), weighted.to(out.dtype), alpha=-1.0)
        wanted = weight.any(1).tolist()
        passes = [own for own in self.passes if any(wanted[user] for user in own.users)]
        rows = [weighted[own.places] for own in passes]
        for tile, items in enumerate(pieces.tiles(len(out), WIDEST) if passes else ()):
            product = WideProduct(out[items], weighted)
            for own, each in zip(passes, rows, strict=True):
                exponentials = self._again(own.places, tile, items) if own.kept is None else own.kept.tile(items)
                product.add(exponentials[: each.shape[0]], each * self._factors[tile, own.places].unsqueeze(1))
            product.flush()

    def write_gradients(self, out: Tensor, users: Sequence[int], weight: Tensor) -> None:
        """Overwrite out (b, items, d) with these users' own gradients, for weight (B, T)."""
        for place, user in enumerate(users):
            own, first, length = self._homes[user]
            gradient, target, begin = out[place], self.target[user, :length], user * own.width
            weighted = self._weighted(self.hidden[user, :length], weight[user, :length], target)
            factors = self._factors[:, begin : begin + length].unsqueeze(2)
            for tile, items in enumerate(pieces.tiles(self.table.shape[0], WIDEST)):
                if own.kept is None:
                    exponentials = self._again(own.places[first : first + length], tile, items)[:length]
                else:
                    exponentials = own.kept.tile(items)[first : first + length]
                multiply_each(exponentials.T, weighted * factors[tile], gradient[items])
            gradient.index_add_(0, target, weighted, alpha=-1.0)

    @cached_property
    def _homes(self) -> dict[int, tuple[Pass, int, int]]:
        """Every user's pass, where their positions begin in it, and how many they are."""
        return {
            user: (own, first, length)
            for own in self.passes
            for user, first, length in zip(own.users, own.starts, own.lengths, strict=True)
        }

    def _weighted(self, hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        return hidden * (weight * (target != self.padding)).unsqueeze(-1)

    @cached_property
    def _factors(self) -> Tensor:
        """(tiles, B * T): what makes chances of each tile's exponentials."""
        numbers = self.shifts.numel()
        room = self.shifts.new_zeros(round_up(numbers))
        torch.sub(self.shifts, self.log_total, out=room[:numbers].view_as(self.shifts))
        return exp_(room)[:numbers].view(len(self.shifts), -1)

    def _again(self, places: Tensor, tile: int, items: slice) -> Tensor:
        """Return exp(score - shift) at these positions, as the forward pass computed it, and of some rows behind."""
        hidden = rows_at(self.hidden.flatten(0, 1), places)
        shift = rows_at(self.shifts[tile].view(-1, 1), places)
        scores = workspace.take("scores", (len(hidden), items.stop - items.start), hidden)
        multiply(hidden, self.table[items].T, scores)
        pieces.leave_out(scores, items, self.padding, float("-inf"))
        return exp_(scores.sub_(shift))


def forward(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int, longest: int
) -> tuple[Tensor, Tensor, UserSoftmaxes]:
    """Return the loss (B, T) of hidden (B, T, d), its slope d loss / d hidden, and the softmaxes.

    Where T is at most `longest` these have their products.
    """
    there = target != padding
    # Whatever stands at a position without a target must not meet what is kept.
    hidden = hidden.masked_fill(~there.unsqueeze(2), 0.0)
    users, width, dim = hidden.shape
    flat, wanted = hidden.flatten(0, 1), target.view(-1, 1)
    loss, slope = hidden.new_zeros(users * width), torch.zeros_like(flat)
    log_total = torch.full_like(loss, float("inf"))
    over = list(pieces.tiles(len(table), WIDEST))
    shifts = hidden.new_zeros(len(over), users * width)
    products = hidden.new_zeros(users, width, width) if width <= longest else None
    lengths = (there * torch.arange(1, width + 1, device=hidden.device)).amax(1).tolist() if width else [0] * users
    parts = list(passes(lengths, width, len(table), products is not None, hidden.device))
    room = Room(sum(round_up(sum(own.lengths)) for own in parts), len(table), hidden)
    every: list[list[Tensor]] = []
    for own in parts:
        places = own.places
        count, rows = places.shape[0], rows_at(flat, places)
        own.kept = room.take(rows.shape[0])
        pairs = [] if products is None else list(_pairs(own, products))
        found = pieces.one_pass(
            rows, table, rows_at(wanted, places).squeeze(1), padding, over, own.kept,
            [(where, squares) for where, squares, _ in pairs],
        )  # fmt: skip
        every.append([each[:count] for each in (*found[:3], torch.cat(found[3], 1))])
        for _, squares, same in pairs:
            products[same, : squares.shape[1], : squares.shape[1]] = squares  # type: ignore[index]
    if every:
        places = torch.cat([own.places for own in parts])
        loss[places], log_total[places], slope[places], taken = map(torch.cat, zip(*every, strict=True))
        shifts[:, places] = taken.T
    loss, log_total = loss.view(users, width).where(there, 0.0), log_total.view(users, width).where(there, float("inf"))
    slope = slope.view(users, width, dim).masked_fill_(~there.unsqueeze(2), 0.0)
    shifts = shifts.view(-1, users, width)
    return loss, slope, UserSoftmaxes(hidden, table, target, padding, log_total, shifts, parts, products)


def _pairs(own: Pass, products: Tensor) -> Iterator[tuple[slice, Tensor, list[int]]]:
    """Yield positions of users with as many each, room for their products, and the users."""
    first = 0
    for length, same in groupby(zip(own.users, own.lengths, strict=True), key=itemgetter(1)):
        users = [user for user, _ in same]
        where = slice(first, first + length * len(users))
        yield where, products.new_zeros(len(users), length, length), users
        first = where.stop


def rows_at(values: Tensor, places: Tensor) -> Tensor:
    """Return the rows at these places, and a few zeros behind them."""
    rows = values.new_zeros(round_up(places.shape[0]), values.shape[1])
    rows[: places.shape[0]] = values[places]
    return rows


def passes(lengths: Sequence[int], width: int, items: int, rounded: bool, device: torch.device = CPU) -> Iterator[Pass]:
    """Yield users who go through one pass, the longest first, of about so many positions as fit a cache.

    Products are taken of users of one length at a time, so lengths are `rounded` up, to at most `width`.

    >>> [(own.users, own.lengths) for own in passes([3, 9, 4], 9, 50, rounded=False)]
    [([1, 2, 0], [9, 4, 3])]
    """
    most, own = pieces.PIECE // min(pieces.MOST, items), Pass(width, device, [], [], None)
    each = [min(width, _rounded(length)) if rounded else max(1, length) for length in lengths]
    taken = 0
    for user in sorted(range(len(each)), key=each.__getitem__, reverse=True):
        length = each[user]
        if taken and taken + length > most:
            yield own
            own, taken = Pass(width, device, [], [], None), 0
        own.users.append(user)
        own.lengths.append(length)
        taken += length
    if own.users and width:
        yield own


@cache
def _rounded(length: int) -> int:
    """Round up to a multiple of a quarter to an eighth of it.

    >>> [_rounded(length) for length in (0, 1, 7, 9, 17, 33)]
    [1, 1, 7, 10, 20, 40]
    """
    step = 1 << max(0, length.bit_length() - 3)
    return max(1, -(-length // step) * step)
