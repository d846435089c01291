"""Attention of float32 on a CPU by one thread, where OpenBLAS multiplies faster than torch's own attention does.

Scores are computed for a few users at a time, who fit a cache, and once more for the gradient: none are kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from dprec_kernels.products import openblas, openblas_is_faster
from dprec_kernels.workspace import workspace

LEAST = 1 << 17  # multiplications of one user from which on it pays: how many users there are must not decide
AT_ONCE = 1 << 18  # scores: 1 MB


def takes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether `attend` takes these, (B, heads, T, d) or (B, T, d), and is faster than torch.

    A mask is what is added to the scores (T, S) of all alike. Where it leaves nothing to a position, torch says what
    comes out.
    """
    if not openblas_is_faster():
        return False
    given = (query, key, value)
    alike = query.shape[:-2] == key.shape[:-2] == value.shape[:-2] and key.shape[:-1] == value.shape[:-1]
    fits = alike and query.dim() in (3, 4) and query.shape[-1] == key.shape[-1]
    if not fits or not all(each.dtype == torch.float32 for each in given) or torch.is_autocast_enabled("cpu"):
        return False
    if not torch.backends.cuda.flash_sdp_enabled():  # on a CPU, too: somebody differentiates twice
        return False
    if query[:1].numel() * key.shape[-2] < LEAST or not openblas.reads(*given):
        return False
    if mask is None:
        return True
    same = mask.dtype == torch.float32 and mask.shape == (query.shape[-2], key.shape[-2]) and not mask.requires_grad
    return same and type(mask) is Tensor and bool((mask.amax(1) > -torch.inf).all())


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False, scale: float = 1.0
) -> Tensor:
    """Return each position's mean of the values, weighted by the softmax of its scores.

    >>> attend(torch.zeros(1, 2, 1), torch.zeros(1, 2, 1), torch.tensor([[[1.0], [3.0]]]), causal=True)
    tensor([[[1.],
             [2.]]])
    """
    if causal:
        mask = query.new_full((query.shape[-2], key.shape[-2]), -torch.inf).triu_(1)
    result: Tensor = _Attention.apply(query, key, value, mask, scale)
    return result


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float
    ) -> Tensor:
        mixed = _heads_last(value, query.shape[-2])
        highest, total = query.new_empty(2, *query.shape[:-1], 1)  # apart: together, a low score would hide the total
        for own, scores in _scores(query, key, mask, scale):
            torch.amax(scores, -1, keepdim=True, out=highest[own])
            scores.sub_(highest[own]).exp_()
            torch.sum(scores, -1, keepdim=True, out=total[own])
            openblas.product(scores, value[own], mixed[own]).div_(total[own])
        ctx.save_for_backward(query, key, value, mask, mixed, highest, total)  # type: ignore[arg-type]
        ctx.scale = scale  # type: ignore[attr-defined]
        return mixed

    @staticmethod
    @once_differentiable  # as torch's own is
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, mask, mixed, highest, total = ctx.saved_tensors  # type: ignore[attr-defined]
        for_query, for_key, for_value = (torch.empty_like(each) for each in (query, key, value))
        scale: float = ctx.scale  # type: ignore[attr-defined]
        gradient = gradient if openblas.reads(gradient) else gradient.resolve_neg().contiguous()
        for own, scores in _scores(query, key, mask, scale):
            chances, above = scores.sub_(highest[own]).exp_(), gradient[own] / total[own]
            openblas.product(chances.mT, above, for_value[own])
            slope = openblas.product(above, value[own].mT, workspace.take("slopes of attention", scores.shape, scores))
            slope.sub_((above * mixed[own]).sum(-1, keepdim=True)).mul_(chances)
            openblas.product(slope, key[own], for_query[own]).mul_(scale)
            openblas.product(slope.mT, query[own], for_key[own]).mul_(scale)
        return for_query, for_key, for_value, None, None


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> Iterator[tuple[slice, Tensor]]:
    """Yield some users at a time, and their scores (b, …, T, S) in memory that the next ones' overwrite."""
    step = max(1, AT_ONCE // max(1, query[:1, ..., 0].numel() * key.shape[-2]))
    for start in range(0, len(query), step):
        own = slice(start, start + step)
        scaled = query[own] * scale
        memory = workspace.take("scores of attention", (*scaled.shape[:-1], key.shape[-2]), query)
        scores = openblas.product(scaled, key[own].mT, memory)
        yield own, scores if mask is None else scores.add_(mask)


def _heads_last(value: Tensor, length: int) -> Tensor:
    """Return memory for what is mixed, in which the heads of a position lie beside each other, as torch puts them."""
    if value.dim() == 3:
        return value.new_empty(len(value), length, value.shape[-1])
    users, heads = value.shape[:2]
    return value.new_empty(users, length, heads, value.shape[-1]).transpose(1, 2)
