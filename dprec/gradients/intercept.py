"""The identity, whose backward pass shows the gradient that flows through it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

KNOWN = ("torch", "dprec", "dprec_kernels")  # packages whose own functions treat each row by itself


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


def nodes(value: Tensor) -> dict[Any, bool]:
    """Return the nodes of autograd's graph that a backward pass from `value` runs, and whether a tap is next to each.

    The tap's own anchor is none of them.
    """
    met: dict[Any, bool] = {}
    waiting = [] if value.grad_fn is None else [(value.grad_fn, False)]
    while waiting:
        node, tapped = waiting.pop()
        if node in met:
            continue
        met[node] = tapped
        tap_itself = isinstance(node, _Tap._backward_cls)  # type: ignore[attr-defined]
        following = node.next_functions[:1] if tap_itself else node.next_functions  # the second is the anchor
        for next_node, _ in following:
            if next_node is not None:
                waiting.append((next_node, tap_itself))
    return met


def leaves(value: Tensor, graph: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors to which a backward pass from `value`, whose `nodes` are these, would add a gradient.

    >>> weight = torch.ones(2, requires_grad=True)
    >>> total = tap(3 * weight, print).sum()
    >>> [leaf is weight for leaf in leaves(total, nodes(total))]
    [True]
    """
    if value.grad_fn is None and value.requires_grad:
        yield value
    for node in graph:
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            yield leaf


def foreign_function(graph: Mapping[Any, bool]) -> str | None:
    """Return the name of an `autograd.Function` among `nodes` that nobody answers for.

    What it does to a gradient is not seen, and it is handed all users' rows. torch and dprec answer for their own, and
    a rule for the one that it hands to the tape.

    >>> class Twice(torch.autograd.Function):
    ...     __module__ = "mine"
    ...     forward = staticmethod(lambda ctx, x: 2 * x)
    ...     backward = staticmethod(lambda ctx, gradient: 2 * gradient)
    >>> twice = Twice.apply(torch.ones(2, requires_grad=True))
    >>> foreign_function(nodes(twice.sum())), foreign_function(nodes(tap(twice, print).sum()))
    ('Twice', None)
    """
    for node, tapped in graph.items():
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not tapped and not _is_known(function):
            return str(function.__name__)
    return None


def _is_known(function: type) -> bool:
    """Whether one of these packages has this function, and not only its name."""
    package = function.__module__.partition(".")[0]
    return package in KNOWN and getattr(sys.modules.get(function.__module__), function.__qualname__, None) is function


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
        ctx.receive(gradient)  # type: ignore[attr-defined]
        return gradient, None, None
