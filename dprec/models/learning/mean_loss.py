"""The mean loss of a step's users, of whom one micro-batch at a time is in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dprec.contract import Losses
from dprec.distributed.ranks import ALONE, Ranks


def mean_loss(
    parameters: Mapping[str, nn.Parameter], losses: Losses, batch: Sequence[Any], ranks: Ranks = ALONE
) -> Tensor:
    """Return the mean loss of all processes' users, whose `backward()` gives every parameter its gradient.

    Gradients are computed here, micro-batch by micro-batch: what autograd keeps of a whole batch may be larger than
    memory. A batch of nobody has the loss 0.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> batch = [torch.ones(1, 1), torch.ones(2, 1)]
    >>> mean_loss({"weight": layer.weight}, lambda part: 2 * layer(part)[:, 0], batch).backward()
    >>> layer.weight.grad
    tensor([[2.]])
    """
    loss: Tensor = _MeanLoss.apply(losses, batch, ranks, *parameters.values())
    return loss


class _MeanLoss(torch.autograd.Function):
    """Has its gradients before anybody asks for them, and hands them out once."""

    @staticmethod
    def forward(ctx: Any, losses: Losses, batch: Sequence[Any], ranks: Ranks, *parameters: nn.Parameter) -> Tensor:
        users = ranks.total(sum(map(len, batch)))
        ctx.gradients = [torch.zeros_like(parameter) for parameter in parameters]
        mean = torch.zeros((), dtype=torch.float64)
        for part in filter(len, batch):
            with torch.enable_grad():
                loss = losses(getattr(part, "content", part)).sum() / users  # of a loader of a user's own
            mean += float(loss.detach())
            found = torch.autograd.grad(loss, parameters, allow_unused=True)
            for gradient, own in zip(ctx.gradients, found, strict=True):
                if own is not None:
                    gradient.add_(own)
        ranks.sum_all_(ctx.gradients)
        ranks.sum_(mean)
        return mean.to(parameters[0].device, torch.float32)

    @staticmethod
    def backward(ctx: Any, *scale: Tensor) -> tuple[Any, ...]:
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, None, *(gradient.mul_(scale[0]) for gradient in gradients)
