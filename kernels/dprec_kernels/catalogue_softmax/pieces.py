"""The same results in pieces that fit a cache, whatever the number of positions and items."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

PIECE = 1 << 20  # elements of the largest temporary: 4 MB of float32


def forward(hidden: Tensor, table: Tensor, target: Tensor, padding: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss (N,), log Σ exp of the scores (N,) and d loss / d hidden (N, d)."""
    loss = hidden.new_zeros(target.shape)
    log_total = hidden.new_zeros(target.shape)
    slope = torch.zeros_like(hidden)
    real = (target != padding).nonzero().squeeze(1)
    for rows in _split(real, table.shape[0]):
        h, wanted = hidden[rows], target[rows]
        scores = h @ table.T  # (n, items)
        scores[:, padding] = float("-inf")
        total = scores.logsumexp(1)
        log_total[rows] = total
        loss[rows] = total - scores.gather(1, wanted.unsqueeze(1)).squeeze(1)
        probabilities = scores.sub_(total.unsqueeze(1)).exp_()
        slope[rows] = probabilities @ table - table[wanted]
    return loss, log_total, slope


def add_table_gradient(
    out: Tensor,
    hidden: Tensor,
    table: Tensor,
    target: Tensor,
    log_total: Tensor,
    weight: Tensor,
    padding: int,
) -> None:
    """Add the gradient of Σ weight · loss for the table to `out`, from what `forward` returned."""
    real = ((target != padding) & (weight != 0)).nonzero().squeeze(1)
    for rows in _split(real, table.shape[0]):
        slope = score_slope(hidden[rows], table, target[rows], log_total[rows], weight[rows], padding)
        out.addmm_(slope.T, hidden[rows])


def score_slope(
    hidden: Tensor, table: Tensor, target: Tensor, log_total: Tensor, weight: Tensor, padding: int
) -> Tensor:
    """Return weight · (softmax - one-hot) for hidden (..., d): (..., items). Padded positions give zeros."""
    scores = hidden @ table.T
    scores[..., padding] = float("-inf")
    slope = scores.sub_(log_total.unsqueeze(-1)).exp_()
    slope.scatter_add_(-1, target.unsqueeze(-1), slope.new_full((), -1.0).expand(*target.shape, 1))
    return slope.mul_((weight * (target != padding)).unsqueeze(-1))


def _split(rows: Tensor, items: int) -> Iterator[Tensor]:
    return iter(rows.split(max(1, PIECE // items)) if rows.numel() else ())
