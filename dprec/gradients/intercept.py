"""The identity, whose backward pass shows the gradient that flows through it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
    anchor = torch.empty((), device=value.device, requires_grad=True)  # nobody reads it
    tapped: Tensor = _Tap.apply(value, anchor, receive)
    return tapped


def leaves(value: Tensor) -> Iterator[Tensor]:
    """Yield the tensors to which a backward pass from `value` would add a gradient.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> [leaf is weight for leaf in leaves(tap(3 * weight, print).sum())]
    [True]
    """
    waiting, met = [value.grad_fn], set()
    if value.grad_fn is None and value.requires_grad:
        yield value
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            yield leaf
        following = node.next_functions
        if isinstance(node, _Tap._backward_cls):  # type: ignore[attr-defined]
            following = following[:1]  # the second is the anchor, to which nothing is added
        waiting += [next_node for next_node, _ in following]


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
