"""An identity that passes its gradient to a callback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from dprec_kernels.plain_function import PlainFunction

_KNOWN = ("torch", "dprec", "dprec_kernels")  # have autograd functions of their own


def tap(value: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
    """Return the value; its gradient goes to `receive`, even where nothing before it requires one.

    >>> x, seen = torch.ones(2), []
    >>> (3 * tap(x, seen.append)).sum().backward()
    >>> seen
    [tensor([3., 3.])]
    """
    anchor = torch.empty((), device=value.device, requires_grad=True)  # its value is not used
    tapped: Tensor = _Tap.run(value, anchor, receive)
    return tapped


def nodes(value: Tensor) -> set[Any]:
    """Return the autograd nodes that a backward pass from `value` runs, without the anchors of taps."""
    tapped = _Tap._backward_cls  # type: ignore[attr-defined]
    found: set[Any] = {value.grad_fn} - {None}
    met = found
    while found:  # a tap's second input is its anchor
        found = {
            each
            for node in found
            for each, _ in (node.next_functions[:1] if type(node) is tapped else node.next_functions)
            if each is not None
        } - met
        met = met | found
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
        if type(node).__name__ == "AccumulateGrad":
            yield node.variable


def foreign_function(graph: Set[Any]) -> str | None:
    """Return the name of an `autograd.Function` that neither torch nor dprec defines.

    Its backward pass receives all users' rows and may do anything to a gradient. A function whose output a rule
    records is not returned: the rule is responsible for it.

    >>> class Twice(torch.autograd.Function):
    ...     __module__ = "mine"
    ...     forward = staticmethod(lambda ctx, x: 2 * x)
    ...     backward = staticmethod(lambda ctx, gradient: 2 * gradient)
    >>> twice = Twice.apply(torch.ones(2, requires_grad=True))
    >>> foreign_function(nodes(twice.sum())), foreign_function(nodes(tap(twice, print).sum()))
    ('Twice', None)
    """
    foreign = _foreign(frozenset(map(type, graph)))
    if foreign:
        tapped = {node.next_functions[0][0] for node in graph if isinstance(node, _Tap._backward_cls)}  # type: ignore[attr-defined]
        for node in graph - tapped:
            if type(node) in foreign:
                return str(foreign[type(node)].__name__)
    return None


@lru_cache(maxsize=1 << 8)
def _foreign(kinds: frozenset[type]) -> dict[type, type]:
    """Map each kind of node that a foreign `autograd.Function` makes to that function."""
    functions = {kind: getattr(kind, "_forward_cls", None) for kind in kinds}
    return {kind: own for kind, own in functions.items() if own and own.__module__.partition(".")[0] not in _KNOWN}


class _Tap(PlainFunction):
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
