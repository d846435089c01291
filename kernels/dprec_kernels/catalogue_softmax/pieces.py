"""The same results in pieces that fit a cache, whatever the number of positions and items."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dprec_kernels.workspace import workspace

PIECE = 1 << 18  # scores held at once: 1 MB of float32 stays in the second-level cache
ITEMS = 1024  # of which items at a time


@dataclass(frozen=True)
class Overlap:
    """How alike the softmaxes of a user's positions are: ⟨p_t, p_s⟩ for every pair, for some users."""

    users: Tensor  # (b,)
    products: Tensor  # (b, t, t), of the users' first t positions; the rest are padding


def forward(hidden: Tensor, table: Tensor, target: Tensor, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss (N,), log Σ exp of the scores (N,) and d loss / d hidden (N, d).

    Positions without a target have log Σ exp = ∞, so that no item has a chance there.
    """
    loss, slope = hidden.new_zeros(target.shape), torch.zeros_like(hidden)
    log_total = hidden.new_full(target.shape, float("inf"))
    real = (target != padding).nonzero().squeeze(1)
    for part in _parts(len(real), table.shape[0]):
        rows = real[part]
        loss[rows], log_total[rows], slope[rows] = _one_pass(hidden[rows], table, target[rows], padding)
    return loss, log_total, slope


def forward_users(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int, longest: int
) -> tuple[Tensor, Tensor, Tensor, list[Overlap]]:
    """Return what `forward` does, for hidden (B, T, d), and the overlaps of users of at most `longest` positions."""
    loss, slope = hidden.new_zeros(target.shape), torch.zeros_like(hidden)
    log_total = hidden.new_full(target.shape, float("inf"))
    real = target != padding
    lengths = (real * torch.arange(1, target.shape[1] + 1, device=target.device)).amax(1).clamp_(min=1)  # (B,)
    lengths, order = lengths.sort(descending=True, stable=True)
    overlaps = []
    long = int((lengths > longest).sum())
    if long:
        users = order[:long]
        flat = forward(hidden[users].flatten(0, 1), table, target[users].flatten(), padding)
        loss[users], log_total[users] = flat[0].view(long, -1), flat[1].view(long, -1)
        slope[users] = flat[2].view(long, *slope.shape[1:])
    while long < len(order):
        length = int(lengths[long])
        users = order[long : long + max(1, PIECE // (min(ITEMS, table.shape[0]) * length))]
        long += len(users)
        products = hidden.new_zeros(len(users), length, length)
        part = (hidden[users, :length].flatten(0, 1), table, target[users, :length].flatten(), padding, products)
        there = real[users, :length]
        found = [result.view(len(users), length, *result.shape[1:]) for result in _one_pass(*part)]
        loss[users, :length] = found[0].where(there, 0.0)
        log_total[users, :length] = found[1].where(there, float("inf"))
        slope[users, :length] = found[2].where(there.unsqueeze(-1), 0.0)
        overlaps.append(Overlap(users, products))
    return loss, log_total, slope, overlaps


def _one_pass(
    hidden: Tensor, table: Tensor, target: Tensor, padding: int, products: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """One pass over the items: the largest score so far, the sum and the mean item are kept and rescaled.

    `products` (b, t, t), for positions (b * t), receives the softmaxes' products of all pairs of a user.
    """
    wanted = table[target]
    top = hidden.new_full((len(hidden), 1), float("-inf"))
    total, mean = torch.zeros_like(top), torch.zeros_like(hidden)
    for items in _tiles(table.shape[0]):
        scores = workspace.take("scores", (len(hidden), items.stop - items.start), hidden)
        torch.mm(hidden, table[items].T, out=scores)
        _leave_out(scores, items, padding, float("-inf"))
        higher = torch.maximum(top, scores.amax(1, keepdim=True)).clamp_(min=torch.finfo(hidden.dtype).min)
        rescale = (top - higher).exp_()
        scores.sub_(higher).exp_()
        total.mul_(rescale).add_(scores.sum(1, keepdim=True))
        mean.mul_(rescale).addmm_(scores, table[items])
        top = higher
        if products is not None:
            _rescale_pairs(products, rescale)
            own = scores.view(*products.shape[:2], -1)
            products.baddbmm_(own, own.mT)
    if products is not None:
        _rescale_pairs(products, 1 / total)
    log_total = (top + total.log()).squeeze(1)
    return log_total - (hidden * wanted).sum(1), log_total, mean.div_(total).sub_(wanted)


def _rescale_pairs(products: Tensor, factor: Tensor) -> None:
    each = factor.view(*products.shape[:2], 1)
    products.mul_(each).mul_(each.mT)


def add_table_gradient(
    out: Tensor, hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor, weight: Tensor, padding: int
) -> None:
    """Add the gradient of Σ weight · loss for the table to `out`, from what `forward` returned."""
    real = ((target != padding) & (weight != 0)).nonzero().squeeze(1)
    h = hidden[real]
    weighted = h * weight[real].unsqueeze(1)
    out.index_add_(0, target[real], weighted, alpha=-1.0)
    for rows in _parts(len(real), table.shape[0]):
        shift = log_total[real[rows]].unsqueeze(1)
        for items in _tiles(table.shape[0]):
            chances = workspace.take("scores", (len(shift), items.stop - items.start), h)
            torch.mm(h[rows], table[items].T, out=chances).sub_(shift).exp_()
            _leave_out(chances, items, padding, 0.0)
            out[items].addmm_(chances.T, weighted[rows])


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
        torch.matmul(h, table[items].T, out=chances).sub_(shift).exp_()
        if items.start <= padding < items.stop:
            chances[..., padding - items.start] = 0.0
        out[:, items].baddbmm_(chances.mT, weighted)


def _leave_out(scores: Tensor, items: slice, padding: int, value: float) -> None:
    if items.start <= padding < items.stop:
        scores[:, padding - items.start] = value


def _parts(count: int, items: int) -> Iterator[slice]:
    step = max(1, PIECE // min(ITEMS, items))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _tiles(items: int) -> Iterator[slice]:
    return (slice(start, min(start + ITEMS, items)) for start in range(0, items, ITEMS))
