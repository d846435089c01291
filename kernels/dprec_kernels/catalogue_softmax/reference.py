"""The plain truth: every matrix is built, every formula is the one on paper."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def catalogue_softmax(hidden: Tensor, table: Tensor, target: Tensor, padding: int = 0) -> Tensor:
    """Return the loss of every position; differentiable in `hidden` and `table` by autograd."""
    logits = (hidden @ table.T).index_fill(-1, target.new_tensor([padding]), float("-inf"))
    # The padding class has probability zero, so positions without a target borrow another and are zeroed.
    somewhere = target.where(target != padding, 1 if padding == 0 else 0)
    loss = F.cross_entropy(logits.flatten(0, -2), somewhere.flatten(), reduction="none")
    return loss.view(target.shape) * (target != padding)


def user_gradients(hidden: Tensor, table: Tensor, target: Tensor, weight: Tensor, padding: int = 0) -> Tensor:
    """Return, for hidden (B, T, d), each user's gradient of Σ_t weight · loss for the table: (B, items, d)."""
    logits = (hidden @ table.T).index_fill(-1, target.new_tensor([padding]), float("-inf"))
    real = (target != padding).unsqueeze(-1)
    slope = (logits.softmax(-1) - F.one_hot(target, table.shape[0])) * real * weight.unsqueeze(-1)
    return slope.mT @ hidden
