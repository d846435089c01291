"""Reference implementations of the operations, with which tests compare the fast paths.

Those of `row_noise`, `row_sums` and `joint` are in their folders, because their fast paths use parts of them. The
reference of `recurrent` is torch's own layers.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# `catalogue_softmax`: every matrix is built, by the formulas on paper.


def catalogue_softmax(hidden: Tensor, table: Tensor, target: Tensor, padding: int = 0) -> Tensor:
    """Return the loss of every position; differentiable in `hidden` and `table` by autograd."""
    logits = (hidden @ table.T).index_fill(-1, target.new_tensor([padding]), float("-inf"))
    # The padding class has probability zero, so positions without a target get another one and are zeroed.
    somewhere = target.where(target != padding, 1 if padding == 0 else 0)
    loss = F.cross_entropy(logits.flatten(0, -2), somewhere.flatten(), reduction="none")
    return loss.view(target.shape) * (target != padding)


def user_gradients(hidden: Tensor, table: Tensor, target: Tensor, weight: Tensor, padding: int = 0) -> Tensor:
    """Return, for hidden (B, T, d), each user's gradient of Σ_t weight · loss for the table: (B, items, d)."""
    logits = (hidden @ table.T).index_fill(-1, target.new_tensor([padding]), float("-inf"))
    real = (target != padding).unsqueeze(-1)
    slope = (logits.softmax(-1) - F.one_hot(target, table.shape[0])) * real * weight.unsqueeze(-1)
    return slope.mT @ hidden


# `sample_norms`: every user's gradient is built, in float64.


def linear_norms(left: Tensor, right: Tensor) -> Tensor:
    """Return (B,) ‖Σ_t left_t rightᵀ_t‖²."""
    return _squared(left.double().mT @ right.double())


def row_norms(ids: Tensor, values: Tensor) -> Tensor:
    """Return (B,) ‖Σ_n e_ids ⊗ values_n‖²."""
    items = int(ids.max()) + 1 if ids.numel() else 0
    tables = torch.zeros(len(ids), items, *values.shape[2:], dtype=torch.float64, device=ids.device)
    for table, row, value in zip(tables, ids, values.double(), strict=True):
        table.index_put_((row,), value, accumulate=True)
    return _squared(tables)


def _squared(gradients: Tensor) -> Tensor:
    return gradients.square().flatten(1).sum(1)


# `lazy_noise`


def lazy_noise(table: Tensor, rows: Tensor, std: Tensor, mean: Tensor, normals: Tensor) -> None:
    """Set table[rows] to mean · table[rows] + std · normals, for normals (n, d)."""
    table[rows] = mean.unsqueeze(1) * table[rows] + std.unsqueeze(1) * normals


# `dense_noise`, as a step that is not fused: gradient and noise are as large as the table.


def dense_noise(
    table: Tensor, std: float, normals: Tensor, alpha: float, keep: float, rows: Tensor, values: Tensor
) -> None:
    """Set the table to keep · table + alpha · (std · normals + gradient), for normals of the table's shape."""
    gradient = torch.zeros_like(table)
    gradient[rows] = values
    gradient += std * normals
    table.mul_(keep).add_(gradient, alpha=alpha)


# `sparse_update`: gradients of the whole table's size, in float64.


def row_gradient(size: int, rows: Tensor, values: Tensor, scales: Tensor) -> Tensor:
    """Return (size, d) the sum of every user's values, multiplied by the user's scale, in the rows they belong to."""
    total = torch.zeros(size, values.shape[-1], dtype=torch.float64)
    for user, scale in enumerate(scales.double()):
        if scale != 0:
            for row, value in zip(rows[user].flatten(), values[user].reshape(-1, values.shape[-1]), strict=True):
                total[row] += scale * value
    return total


def sgd(table: Tensor, gradient: Tensor, lr: float, decay: float) -> Tensor:
    """Return the table after a step."""
    return table - lr * (gradient + decay * table)


# `contribution_map`: the map in full, one float64 for every row.


def contributions(users: list[Tensor], size: int, clip: float) -> Tensor:
    """Return (size,) the sum of the users' vectors of zeros and ones, each scaled down to L2 norm `clip`."""
    total = torch.zeros(size, dtype=torch.float64)
    for rows in users:
        vector = torch.zeros(size, dtype=torch.float64)
        vector[rows] = 1.0
        total += vector * min(1.0, clip / max(1.0, float(vector.norm())))
    return total
