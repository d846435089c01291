"""The catalogue softmax in pieces that fit a cache, for any number of positions and items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain, repeat

import torch
from torch import Tensor

from dprec_kernels.products import add_multiplied, add_products, multiply
from dprec_kernels.workspace import Loan, workspace

PIECE = 1 << 20  # scores held at once: 4 MB of float32, which the second- and third-level caches hold
ITEMS = 4096  # items of a tile; Python's cost is the same for a tile of any size
LIMIT = 1 << 26  # bytes of exponentials that are kept: 64 MB
SLACK = 8.0  # how far scores may exceed the shift before it is raised: their exponentials stay small

Pairs = Sequence[tuple[slice, Tensor]]


@dataclass
class Found:
    """The results of passes over all items for positions (P,)."""

    loss: Tensor
    log_total: Tensor  # log Σ exp of the scores
    missed: Tensor  # 1 minus the target's probability: if that is nearly 1, "softmax - 1" would be rounding error
    slope: Tensor  # (P, d): d loss / d hidden
    shifts: Tensor  # (tiles, P): what was subtracted from the scores
    total: Tensor  # Σ exp(score - last shift)


class Kept:
    """exp(score - shift) of the first positions for all items, tile by tile, 0 at each position's own target.

    A gradient can always be computed from the scores again. That costs a third of the time, so a bounded amount of
    memory, the same at every step, holds as many exponentials as fit.

    >>> import torch
    >>> loan = workspace.lend("an example", 2 * 3, torch.zeros(1))
    >>> Kept(loan, positions=2).tile(slice(0, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(self, loan: Loan, positions: int) -> None:
        self.positions = positions
        self._loan = loan

    def tile(self, items: slice, first: int = 0, count: int | None = None) -> Tensor:
        """Return the memory (positions, tile) of these items, for `count` positions from `first` on."""
        width = items.stop - items.start
        start, count = self.positions * items.start + first * width, self.positions - first if count is None else count
        return self._loan.memory.as_strided((count, width), (width, 1), start)


def room_for(counts: Sequence[int], items: int, like: Tensor) -> Kept | None:
    """Return room for the positions of the first passes, as many as fit into memory.

    Return None while another call's room is in use.
    """
    most, positions = LIMIT // like.dtype.itemsize // items, 0
    for count in counts:
        if positions + count > most:
            break
        positions += count
    loan = workspace.lend("kept", positions * items, like) if positions else None
    return None if loan is None else Kept(loan, positions)


def passes_over_items(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int, tiles: Sequence[slice], counts: Sequence[int],
    kept: Kept | None, pairs: Sequence[Pairs] = (),
) -> Found:  # fmt: skip
    """Go over the items once for each pass of `counts` positions, and keep the exponentials of the first ones.

    The sum and the mean item are kept relative to a shift, which is raised when scores grow. Each of a pass's `pairs`
    has positions (b * t) of the pass and products (b, t, t), to which the products of the exponentials of a user's
    positions are written. They are to be divided by `Found.total`.

    The target is left out of all of them, and its probability is computed from its own score, so that gradients do not
    depend on the difference of two numbers that are nearly 1.
    """
    wanted, least = table[target], torch.finfo(hidden.dtype).min
    own = (hidden * wanted).sum(1, keepdim=True)
    mean, rest = torch.zeros_like(hidden), torch.zeros_like(own)
    rows, targets = [table[items] for items in tiles], _places_of_targets(target, counts, tiles)
    columns, shifts = [each.T for each in rows], []
    begins = accumulate(counts, initial=0)
    parts = zip(*(torch.split_with_sizes(each, counts) for each in (hidden, own, mean, rest)), strict=True)
    for number, (first, (h, o, m, r)) in enumerate(zip(begins, parts, strict=False)):
        shift, taken, squares = None, [], pairs[number] if pairs else ()
        for items, right, rows_of_tile, places in zip(tiles, columns, rows, targets[number], strict=True):
            if kept is not None and first < kept.positions:
                scores = kept.tile(items, first, counts[number])
            else:
                scores = workspace.take("scores", (counts[number], items.stop - items.start), hidden)
            multiply(h, right, scores)
            leave_out(scores, items, padding, places)
            highest = scores.amax(1, keepdim=True)
            if shift is None:
                shift = torch.maximum(highest, o).clamp_(min=least)
            elif not float((highest - shift).max()) <= SLACK:  # also where it is not a number
                higher = torch.where(highest <= shift + SLACK, shift, torch.maximum(shift, highest))
                rescale, shift = (shift - higher).exp_(), higher
                r.mul_(rescale)
                m.mul_(rescale)
                for where, products in squares:
                    rescale_pairs(products, rescale[where].view(*products.shape[:2], 1))
            scores.sub_(shift).exp_()
            r.add_(scores.sum(1, keepdim=True))
            add_multiplied(m, scores, rows_of_tile)
            taken.append(shift)
            for where, products in squares:
                each = scores[where].view(*products.shape[:2], -1)
                add_products(products, each, each.mT)
        shifts.append(taken)
    last = torch.cat([taken[-1] for taken in shifts])
    total = (own - last).exp_().add_(rest)
    missed = rest / total
    log_total = total.log().add_(last)
    slope = mean.div_(total).addcmul_(missed, wanted, value=-1.0)
    loss, each = (log_total - own).squeeze(1), torch.cat([torch.cat(taken, 1) for taken in shifts]).T
    return Found(loss, log_total.squeeze(1), missed.squeeze(1), slope, each, total.squeeze(1))


def _places_of_targets(target: Tensor, counts: Sequence[int], tiles: Sequence[slice]) -> list[Sequence[Tensor]]:
    """Return, for each pass and tile, the places of the targets in the flattened matrix of scores."""
    device = target.device
    row = torch.tensor(list(chain.from_iterable(map(range, counts))), device=device)
    if len(tiles) == 1:
        return [(places,) for places in torch.split_with_sizes(row.mul_(tiles[0].stop).add_(target), counts)]
    step, last = tiles[0].stop, len(tiles) - 1
    tile = target.div(step, rounding_mode="floor")
    width = torch.where(tile == last, tiles[-1].stop - step * last, step)
    each = row * width + target - tile * step
    number = torch.tensor(list(chain.from_iterable(map(repeat, range(len(counts)), counts))), device=device)
    group = number.mul_(len(tiles)).add_(tile)
    sizes = torch.bincount(group, minlength=len(counts) * len(tiles)).tolist()
    found = torch.split_with_sizes(each[group.argsort(stable=True)], sizes)
    return [found[first : first + len(tiles)] for first in range(0, len(found), len(tiles))]


def rescale_pairs(products: Tensor, each: Tensor) -> None:
    """Multiply products (b, t, t) by a factor (b, t, 1) of each of the two positions."""
    products.mul_(each).mul_(each.mT)


def add_users_gradients(
    out: Tensor, hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor, weight: Tensor, padding: int
) -> None:
    """Add every user's own gradient, for hidden (b, T, d), to out (b, items, d)."""
    real = target != padding
    length = int((real * torch.arange(1, target.shape[1] + 1, device=target.device)).max())
    h, wanted, shift = hidden[:, :length], target[:, :length], log_total[:, :length].unsqueeze(2)
    weighted = h * (weight * real)[:, :length].unsqueeze(2)
    first = torch.arange(len(h), device=h.device).unsqueeze(1) * out.shape[1]
    out.view(-1, out.shape[2]).index_add_(0, (wanted + first).flatten(), weighted.flatten(0, 1), alpha=-1.0)
    for items in tiles(table.shape[0]):
        chances = workspace.take("chances", (*wanted.shape, items.stop - items.start), h)
        multiply(h.flatten(0, 1), table[items].T, chances.flatten(0, 1))
        chances.sub_(shift).clamp_(max=0.0).exp_()  # none is above 1, however scores are rounded this time
        if items.start <= padding < items.stop:
            chances[..., padding - items.start] = 0.0
        add_products(out[:, items], chances.mT, weighted)


def leave_out(scores: Tensor, items: slice, padding: int, places: Tensor) -> None:
    """Give probability 0 to padding, and to these places of the flattened matrix."""
    if items.start <= padding < items.stop:
        scores.select(1, padding - items.start).fill_(float("-inf"))
    scores.view(-1).index_fill_(0, places, float("-inf"))


@cache
def tiles(items: int) -> Sequence[slice]:
    """Return slices of the items."""
    return [slice(start, min(start + ITEMS, items)) for start in range(0, items, ITEMS)]
