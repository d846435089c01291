"""The same results in pieces that fit a cache, whatever the number of positions and items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dprec_kernels.catalogue_softmax.kept import Kept, Room
from dprec_kernels.exponentials import exp_
from dprec_kernels.products import add_multiplied, add_products, multiply
from dprec_kernels.wide_sum import add_product
from dprec_kernels.workspace import workspace

PIECE = 1 << 20  # scores held at once: 4 MB of float32, which the second- and third-level caches hold
ITEMS = 2048  # of which items at a time: fewer, larger products
MOST = 2 * ITEMS  # and of few positions so many: a tile costs Python as much whatever its size
SLACK = 8.0  # how far scores may rise above what is taken off before more is: their exponentials stay small


def forward(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int, keep: bool = False
) -> tuple[Tensor, Tensor, Tensor, list[Kept]]:
    """Return the loss (N,), log Σ exp of the scores (N,), d loss / d hidden (N, d), and what is to be kept.

    Positions without a target have log Σ exp = ∞, so that no item has a chance there. What is kept is of the
    first positions that have one.
    """
    loss, slope = hidden.new_zeros(target.shape), torch.zeros_like(hidden)
    log_total = hidden.new_full(target.shape, float("inf"))
    real = (target != padding).nonzero().squeeze(1)
    room = Room(len(real), len(table), hidden) if keep else None
    kept = []
    for part in _parts(len(real), table.shape[0]):
        rows = real[part]
        own = room.take(len(rows)) if room else None
        over = list(tiles(table.shape[0], len(rows)))
        found = one_pass(hidden[rows], table, target[rows], padding, over, own)
        loss[rows], log_total[rows], slope[rows], shifts = found
        if own is None:
            room = None
        else:
            own.shifts = list(zip(over, shifts, strict=True))
            kept.append(own)
    return loss, log_total, slope, kept


def one_pass(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int, tiles: Sequence[slice], kept: Kept | None,
    pairs: Sequence[tuple[slice, Tensor]] = (),
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:  # fmt: skip
    """One pass over the items: sum and mean item are kept less a shift, which is raised as the scores grow.

    Return loss, log Σ exp, slope and what was taken off the scores of each tile (positions, 1). Of each of `pairs`,
    positions (b * t) and products (b, t, t), the products receive those of the softmaxes of all pairs of a user.

    The target's own chance is kept apart. Where it is nearly 1, what is left of "softmax - 1" is rounding, and the sum
    of all other chances is not.
    """
    wanted, least = table[target], torch.finfo(hidden.dtype).min
    shifts: list[Tensor] = []
    hit, mean = hidden.new_zeros(hidden.shape[0], 1), torch.zeros_like(hidden)
    rest = torch.zeros_like(hit)
    for items in tiles:
        scores = (
            kept.tile(items) if kept else workspace.take("scores", (hidden.shape[0], items.stop - items.start), hidden)
        )
        multiply(hidden, table[items].T, scores)
        leave_out(scores, items, padding, float("-inf"))
        highest = scores.amax(1, keepdim=True).clamp_(min=least)
        shift = shifts[-1] if shifts else highest
        if shifts and bool((far := ~(highest <= shift + SLACK)).any()):  # also where it is not a number
            higher = torch.where(far, torch.maximum(shift, highest), shift)
            rescale, shift = (shift - higher).exp_(), higher
            for each in (hit, rest, mean):
                each.mul_(rescale)
            for rows, products in pairs:
                _rescale_pairs(products, rescale[rows])
        exp_(scores.sub_(shift))
        place = ((target >= items.start) & (target < items.stop)).nonzero().squeeze(1)
        here = place, target[place] - items.start
        met = scores[here]
        scores[here] = 0.0
        hit[place, 0] = met
        rest.add_(scores.sum(1, keepdim=True))
        add_multiplied(mean, scores, table[items])
        scores[here] = met
        shifts.append(shift)
        for rows, products in pairs:
            own = scores[rows].view(*products.shape[:2], -1)
            add_products(products, own, own.mT)
    total = hit + rest
    for rows, products in pairs:
        _rescale_pairs(products, 1 / total[rows])
    log_total = (shifts[-1] + total.log()).squeeze(1)
    slope = mean.addcmul_(rest, wanted, value=-1.0).div_(total)
    return log_total - (hidden * wanted).sum(1), log_total, slope, shifts


def _rescale_pairs(products: Tensor, factor: Tensor) -> None:
    each = factor.view(*products.shape[:2], 1)
    products.mul_(each).mul_(each.mT)


def add_table_gradient(
    out: Tensor, hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor, weight: Tensor, padding: int,
    kept: Sequence[Kept] = (),
) -> None:  # fmt: skip
    """Add the gradient of Σ weight · loss for the table to `out`, from what `forward` returned."""
    real = (target != padding).nonzero().squeeze(1)
    for own in kept:
        first, real = real[: own.positions], real[own.positions :]
        weighted = hidden[first] * weight[first].unsqueeze(1)
        out.index_add_(0, target[first], weighted.to(out.dtype), alpha=-1.0)
        for items, exponentials, factor in own.tiles(log_total[first]):
            add_product(out[items], exponentials, weighted * factor)
    real = real[weight[real] != 0]
    h = hidden[real]
    weighted = h * weight[real].unsqueeze(1)
    out.index_add_(0, target[real], weighted.to(out.dtype), alpha=-1.0)
    for rows in _parts(len(real), table.shape[0]):
        shift = log_total[real[rows]].unsqueeze(1)
        for items in tiles(table.shape[0]):
            chances = workspace.take("scores", (len(shift), items.stop - items.start), h)
            as_chances(multiply(h[rows], table[items].T, chances), shift)
            leave_out(chances, items, padding, 0.0)
            add_product(out[items], chances, weighted[rows])


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
        as_chances(chances, shift)
        if items.start <= padding < items.stop:
            chances[..., padding - items.start] = 0.0
        add_products(out[:, items], chances.mT, weighted)


def as_chances(scores: Tensor, log_total: Tensor) -> Tensor:
    """Turn scores that were computed again, in other shapes, into chances: none is above 1, however they are rounded.

    >>> as_chances(torch.tensor([1e9 + 64]), torch.tensor([1e9]))
    tensor([1.])
    """
    return exp_(scores.sub_(log_total).clamp_(max=0.0))


def leave_out(scores: Tensor, items: slice, padding: int, value: float) -> None:
    if items.start <= padding < items.stop:
        scores[:, padding - items.start].fill_(value)


def _parts(count: int, items: int) -> Iterator[slice]:
    step = max(1, PIECE // min(ITEMS, items))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def tiles(items: int, positions: int = PIECE // ITEMS) -> Iterator[slice]:
    """Slices of the items: of so many positions their scores fit a cache."""
    step = min(max(ITEMS, PIECE // max(positions, 1) // ITEMS * ITEMS), MOST)
    return (slice(start, min(start + step, items)) for start in range(0, items, step))
