"""The same results in pieces that fit a cache, whatever the number of positions and items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dprec_kernels.catalogue_softmax.kept import Kept, Room
from dprec_kernels.exponentials import exp_
from dprec_kernels.products import add_multiplied, add_products, multiply, multiply_each
from dprec_kernels.wide_sum import WideProduct, add_product
from dprec_kernels.workspace import workspace

PIECE = 1 << 20  # scores held at once: 4 MB of float32, which the second- and third-level caches hold
ITEMS = 2048  # of which items at a time: fewer, larger products
MOST = 2 * ITEMS  # and of few positions so many: a tile costs Python as much whatever its size
SLACK = 8.0  # how far scores may rise above what is taken off before more is: their exponentials stay small
POSITIONS = 512  # of users who go through one pass together


@dataclass
class Group:
    """Users of similar length. Their positions went through one pass, together with those of the groups beside it."""

    users: Tensor  # (b,)
    length: int  # t: of the longest of them
    products: Tensor | None  # (b, t, t): ⟨p_t, p_s⟩ of the softmaxes of a user's positions
    kept: Kept | None  # of the pass
    likeliest: Tensor  # (b, t): the largest chance that an item has at each position
    first: int = 0  # which of the pass's positions is the first of these (b * t)

    @property
    def rows(self) -> slice:
        """Which of the pass's positions are these users'."""
        return slice(self.first, self.first + len(self.users) * self.length)


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
        loss[rows], log_total[rows], slope[rows], _ = _one_pass(hidden[rows], table, target[rows], padding, own)
        if own is None:
            room = None
        else:
            kept.append(own)
    return loss, log_total, slope, kept


def forward_users(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int, longest: int
) -> tuple[Tensor, Tensor, Tensor, list[Group]]:
    """Return loss, log Σ exp and slope as `forward` does, for hidden (B, T, d), and the groups of users.

    Users of at most `longest` positions have the products of their softmaxes.
    """
    width, most = target.shape[1], min(POSITIONS, PIECE // min(ITEMS, table.shape[0]))
    hidden, target = hidden.flatten(0, 1), target.flatten()
    loss, slope = hidden.new_zeros(target.shape), torch.zeros_like(hidden)
    log_total = hidden.new_full(target.shape, float("inf"))
    real = target != padding
    lengths = (real.view(-1, width) * torch.arange(1, width + 1, device=target.device)).amax(1).clamp_(min=1)  # (B,)
    alike = list(_alike(lengths, longest, most))
    room = Room(sum(len(users) * length for users, length in alike), len(table), hidden)
    groups: list[Group] = []
    for run in _passes(alike, longest, most):
        places = torch.cat([_places(users, length, width) for users, length in run])
        kept, start = room.take(len(places)), len(groups)
        for users, length in run:
            products = hidden.new_zeros(len(users), length, length) if length <= longest else None
            first = groups[-1].rows.stop if len(groups) > start else 0
            groups.append(Group(users, length, products, kept, hidden, first))
        there = real[places]
        # Whatever stands at a position without a target must not meet what is kept.
        own = hidden[places].masked_fill_(~there.unsqueeze(1), 0.0)
        pairs = [(group.rows, group.products) for group in groups[start:] if group.products is not None]
        found = _one_pass(own, table, target[places], padding, kept, pairs)
        loss[places] = found[0].where(there, 0.0)
        log_total[places] = found[1].where(there, float("inf"))
        slope[places] = found[2].masked_fill_(~there.unsqueeze(1), 0.0)
        likeliest = found[3].where(there, 0.0)
        for group in groups[start:]:
            group.likeliest = likeliest[group.rows].view(-1, group.length)
    return loss.view(-1, width), log_total.view(-1, width), slope.view(-1, width, slope.shape[1]), groups


def _places(users: Tensor, length: int, width: int) -> Tensor:
    """Return where the first positions of users lie, so many of each, among the positions (B * width) of all."""
    return (users.unsqueeze(1) * width + torch.arange(length, device=users.device)).flatten()


def _passes(
    alike: Sequence[tuple[Tensor, int]], longest: int, positions: int
) -> Iterator[Sequence[tuple[Tensor, int]]]:
    """Yield the groups that go through one pass: of about so many positions, all with their products or all without."""
    start, count = 0, 0
    for place, (users, length) in enumerate(alike):
        own = len(users) * length
        if place > start and (count + own > positions or (alike[start][1] <= longest) != (length <= longest)):
            yield alike[start:place]
            start, count = place, 0
        count += own
    if start < len(alike):
        yield alike[start:]


def _alike(lengths: Tensor, longest: int, positions: int) -> Iterator[tuple[Tensor, int]]:
    """Yield users of similar length and that of the longest of them: about so many positions, little padding."""
    lengths, order = lengths.sort(descending=True, stable=True)
    known, start = lengths.tolist(), 0
    while start < len(known):
        length, stop = known[start], start + 1
        while stop < len(known) and (stop + 1 - start) * length <= positions:
            shorter = known[stop] < length and (stop - start) * length > positions // 3
            if shorter or known[stop] <= longest < length:
                break
            stop += 1
        yield order[start:stop], length
        start = stop


def _one_pass(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int, kept: Kept | None,
    pairs: Sequence[tuple[slice, Tensor]] = (),
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """One pass over the items: sum and mean item are kept less a shift, which is raised as the scores grow.

    Return loss, log Σ exp, slope and the largest chance. Of each of `pairs`, positions (b * t) and products (b, t, t),
    the products receive those of the softmaxes of all pairs of a user.

    The target's own chance is kept apart. Where it is nearly 1, what is left of "softmax - 1" is rounding, and the sum
    of all other chances is not.
    """
    wanted, order = table[target], target.argsort()
    least = torch.finfo(hidden.dtype).min
    tiles = list(_tiles(table.shape[0], len(hidden)))
    stops = torch.searchsorted(target[order], torch.tensor([items.stop for items in tiles], device=target.device))
    shift = largest = hidden.new_full((len(hidden), 1), float("-inf"))
    hit, rest, mean = torch.zeros_like(shift), torch.zeros_like(shift), torch.zeros_like(hidden)
    before = 0
    for items, after in zip(tiles, stops.tolist(), strict=True):
        scores = kept.tile(items) if kept else workspace.take("scores", (len(hidden), items.stop - items.start), hidden)
        multiply(hidden, table[items].T, scores)
        _leave_out(scores, items, padding, float("-inf"))
        highest = scores.amax(1, keepdim=True).clamp_(min=least)
        largest = torch.maximum(largest, highest)
        far = ~(highest <= shift + SLACK)  # also where it is not a number
        if bool(far.any()):
            higher = torch.where(far, torch.maximum(shift, highest), shift)
            rescale, shift = (shift - higher).exp_(), higher
            for each in (hit, rest, mean):
                each.mul_(rescale)
            for rows, products in pairs:
                _rescale_pairs(products, rescale[rows])
        exp_(scores.sub_(shift))
        here = order[before:after], target[order[before:after]] - items.start
        met, before = scores[here], after
        scores[here] = 0.0
        hit[here[0], 0] = met
        rest.add_(scores.sum(1, keepdim=True))
        add_multiplied(mean, scores, table[items])
        scores[here] = met
        if kept:
            kept.shifts.append((items, shift))
        for rows, products in pairs:
            own = scores[rows].view(*products.shape[:2], -1)
            add_products(products, own, own.mT)
    total = hit + rest
    for rows, products in pairs:
        _rescale_pairs(products, 1 / total[rows])
    log_total = (shift + total.log()).squeeze(1)
    slope = mean.addcmul_(rest, wanted, value=-1.0).div_(total)
    likeliest = (largest - shift).exp_().div_(total).squeeze(1)
    return log_total - (hidden * wanted).sum(1), log_total, slope, likeliest


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
        for items in _tiles(table.shape[0]):
            chances = workspace.take("scores", (len(shift), items.stop - items.start), h)
            as_chances(multiply(h[rows], table[items].T, chances), shift)
            _leave_out(chances, items, padding, 0.0)
            add_product(out[items], chances, weighted[rows])


def add_groups_gradient(
    out: Tensor, groups: Sequence[Group], hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor,
    weight: Tensor, padding: int,
) -> None:  # fmt: skip
    """Add what the users of these groups give to the gradient of Σ weight · loss, for hidden (B, T, d), to `out`."""
    width, held = target.shape[1], []
    hidden, target, log_total, weight = (x.flatten(0, 1) for x in (hidden, target, log_total, weight))
    for run in _together(groups):
        places = torch.cat([_places(group.users, group.length, width) for group in run])
        h, wanted, total, each = (tensor[places] for tensor in (hidden, target, log_total, weight))
        if run[0].kept is None:
            add_table_gradient(out, h, table, wanted, total, each, padding)
        else:
            weighted = h * (each * (wanted != padding)).unsqueeze(1)
            out.index_add_(0, wanted, weighted.to(out.dtype), alpha=-1.0)
            held.append((run[0].kept, weighted, total, slice(run[0].first, run[-1].rows.stop)))
    for items in _tiles(len(out)) if held else ():
        product = WideProduct(out[items], hidden)
        for kept, weighted, total, rows in held:
            exponentials, factor = kept.part(items, total, rows)
            product.add(exponentials, weighted * factor)
        product.flush()


def _together(groups: Sequence[Group]) -> Iterator[Sequence[Group]]:
    """Yield groups whose positions lie beside each other in one pass, and alone those of which nothing is kept."""
    start = 0
    for place in range(1, len(groups) + 1):
        last = groups[place - 1]
        if place < len(groups):
            own = groups[place]
            if own.kept is not None and own.kept is last.kept and own.first == last.rows.stop:
                continue
        yield groups[start:place]
        start = place


@dataclass
class Prepared:
    """What the gradients of a group's users are products of, for all of them at once."""

    target: Tensor  # (b, t)
    weighted: Tensor  # (b, t, d)
    tiles: list[tuple[slice, Tensor, Tensor]]  # items, exponentials (b * t, tile), and weighted for these (b, t, d)


def prepare(group: Group, hidden: Tensor, target: Tensor, log_total: Tensor, weight: Tensor, padding: int) -> Prepared:
    """Prepare the users of a group that has kept something, for hidden (B, T, d)."""
    assert group.kept is not None
    own = (group.users, slice(group.length))
    wanted = target[own]
    weighted = hidden[own] * (weight[own] * (wanted != padding)).unsqueeze(2)
    tiles = group.kept.tiles(log_total[own].flatten(), group.rows)
    return Prepared(wanted, weighted, [(n, each, weighted * by.view(*wanted.shape, 1)) for n, each, by in tiles])


def write_user_gradient(out: Tensor, prepared: Prepared, row: int) -> None:
    """Write the gradient of user `row` of a prepared group to all of out (items, d)."""
    wanted = prepared.target[row]
    own = slice(row * len(wanted), (row + 1) * len(wanted))
    for items, exponentials, weighted in prepared.tiles:
        multiply_each(exponentials[own].T, weighted[row], out[items])
    out.index_add_(0, wanted, prepared.weighted[row], alpha=-1.0)


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
    for items in _tiles(table.shape[0]):
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


def _leave_out(scores: Tensor, items: slice, padding: int, value: float) -> None:
    if items.start <= padding < items.stop:
        scores[:, padding - items.start] = value


def _parts(count: int, items: int) -> Iterator[slice]:
    step = max(1, PIECE // min(ITEMS, items))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _tiles(items: int, positions: int = PIECE // ITEMS) -> Iterator[slice]:
    """Slices of the items: of so many positions their scores fit a cache."""
    step = min(max(ITEMS, PIECE // max(positions, 1) // ITEMS * ITEMS), MOST)
    return (slice(start, min(start + step, items)) for start in range(0, items, step))
