"""The identity, whose backward pass shows the gradient that flows through it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from dprec.errors import UncoveredUse


def tap(value: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
    """Return the value; its gradient goes to `receive`, even where nothing before it requires one.

    >>> x, seen = torch.ones(2), []
    >>> (3 * tap(x, seen.append)).sum().backward()
    >>> seen
    [tensor([3., 3.])]
    """
    anchor = torch.zeros((), device=value.device, requires_grad=True)
    tapped: Tensor = _Tap.apply(value, anchor, receive)
    return tapped


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, value: Tensor, anchor: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
        ctx.receive = receive  # type: ignore[attr-defined]
        # What is returned must not be a view, or torch refuses to change it in place (ReLU(inplace=True)).
        if 0 in value.stride():
            return value.view_as(value)  # a parameter's copies, which nothing changes in place
        if value._is_view():
            return value.clone()
        ctx.mark_dirty(value)  # type: ignore[attr-defined]
        return value

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        receive, ctx.receive = ctx.receive, _refuse_twice  # type: ignore[attr-defined]  # frees what the rules kept
        receive(gradient)
        return gradient, None, None


def _refuse_twice(gradient: Tensor) -> None:
    raise UncoveredUse("a second backward pass ran through a closed tape: call losses(batch) again")
