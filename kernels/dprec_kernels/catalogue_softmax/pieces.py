"""The same results in pieces that fit a cache, whatever the number of positions and items."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dprec_kernels.workspace import workspace

PIECE = 1 << 18  # scores held at once: 1 MB of float32 stays in the second-level cache
ITEMS = 1024  # of which items at a time


def forward(hidden: Tensor, table: Tensor, target: Tensor, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss (N,), log Σ exp of the scores (N,) and d loss / d hidden (N, d).

    Positions without a target have log Σ exp = ∞, so that no item has a chance there.

    One pass over the items: the largest score so far, the sum and the mean item are kept and rescaled.
    """
    loss, slope = hidden.new_zeros(target.shape), torch.zeros_like(hidden)
    log_total = hidden.new_full(target.shape, float("inf"))
    real = (target != padding).nonzero().squeeze(1)
    for part in _rows(len(real), table.shape[0]):
        rows = real[part]
        h, wanted = hidden[rows], table[target[rows]]
        top = h.new_full((len(h), 1), float("-inf"))
        total, mean = torch.zeros_like(top), torch.zeros_like(h)
        for items in _tiles(table.shape[0]):
            scores = torch.mm(h, table[items].T, out=workspace.take("scores", (len(h), items.stop - items.start), h))
            _leave_out(scores, items, padding, float("-inf"))
            higher = torch.maximum(top, scores.amax(1, keepdim=True)).clamp_(min=torch.finfo(h.dtype).min)
            rescale = (top - higher).exp_()
            scores.sub_(higher).exp_()
            total.mul_(rescale).add_(scores.sum(1, keepdim=True))
            mean.mul_(rescale).addmm_(scores, table[items])
            top = higher
        log_total[rows] = (top + total.log()).squeeze(1)
        loss[rows] = log_total[rows] - (h * wanted).sum(1)
        slope[rows] = mean.div_(total).sub_(wanted)
    return loss, log_total, slope


def add_table_gradient(
    out: Tensor, hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor, weight: Tensor, padding: int
) -> None:
    """Add the gradient of Σ weight · loss for the table to `out`, from what `forward` returned."""
    real = ((target != padding) & (weight != 0)).nonzero().squeeze(1)
    if not real.numel():
        return
    h = hidden[real]
    weighted = h * weight[real].unsqueeze(1)
    out.index_add_(0, target[real], weighted, alpha=-1.0)
    for rows in _rows(len(real), table.shape[0]):
        shift = log_total[real[rows]].unsqueeze(1)
        for items in _tiles(table.shape[0]):
            chances = torch.mm(
                h[rows], table[items].T, out=workspace.take("scores", (len(shift), items.stop - items.start), h)
            )
            chances.sub_(shift).exp_()
            _leave_out(chances, items, padding, 0.0)
            out[items].addmm_(chances.T, weighted[rows])


def score_slope(
    hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor, weight: Tensor, padding: int
) -> Tensor:
    """Return weight · (softmax - one-hot) for hidden (b, T, d): (b, T, items), in memory that the next call reuses.

    Padded positions give zeros.
    """
    scores = workspace.take("slope", (*target.shape, table.shape[0]), hidden)
    torch.matmul(hidden, table.T, out=scores)
    scores.sub_(log_total.unsqueeze(-1)).exp_()
    scores[..., padding] = 0.0
    scores.scatter_add_(-1, target.unsqueeze(-1), scores.new_full((), -1.0).expand(*target.shape, 1))
    return scores.mul_((weight * (target != padding)).unsqueeze(-1))


def _leave_out(scores: Tensor, items: slice, padding: int, value: float) -> None:
    if items.start <= padding < items.stop:
        scores[:, padding - items.start] = value


def _rows(count: int, items: int) -> Iterator[slice]:
    step = max(1, PIECE // min(ITEMS, items))
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def _tiles(items: int) -> Iterator[slice]:
    return (slice(start, min(start + ITEMS, items)) for start in range(0, items, ITEMS))
