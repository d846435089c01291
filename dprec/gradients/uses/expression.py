"""Tensors computed from parameters alone, and whose gradient what is computed from them adds to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.pulled import OfOneNumber, Pulled
from dprec.gradients.layouts.layout import operation_name

EXPRESSION = "_dprec_expression"


class Expression(NamedTuple):
    """How a tensor follows from parameters alone."""

    parameters: tuple[nn.Parameter, ...]
    transpose: bool = False  # it is the transpose of the one parameter
    ids: Tensor | None = None  # it is the one parameter's rows at these ids, or the transpose of those
    factor: float = 1.0  # times this
    one: Tensor | None = None  # its rows are copies of this one
    version: int = 0  # of the tensor when this was so


def express(result: Any, expression: Expression) -> Any:
    """Return the result, known from here on for what it is computed from, if a gradient can flow back at all."""
    if isinstance(result, Tensor) and result.requires_grad:
        setattr(result, EXPRESSION, expression._replace(version=result._version))
    return result


def expression_of(value: Tensor) -> Expression | None:
    """Return how this tensor follows from parameters: once changed in place, it is no longer just rows of one."""
    found: Expression | None = getattr(value, EXPRESSION, None)
    if found is None or found.version == value._version:
        return found
    return found._replace(transpose=False, ids=None, one=None)


def sources_of(value: Tensor) -> tuple[nn.Parameter, ...]:
    """Return the parameters behind a trainable tensor: those of its expression, or itself."""
    expression = expression_of(value)
    return expression.parameters if expression else (value,)  # type: ignore[return-value]


def without_copies(value: Tensor) -> Tensor:
    """Return the one row that a tensor of parameters repeats for each user, to be broadcast; else the tensor."""
    expression = expression_of(value)
    return value if expression is None or expression.one is None else expression.one


def copied_from(func: Callable[..., Any], source: Tensor, result: Tensor) -> Tensor | None:
    """Return what all rows of a result are copies of, such as `p` of `p.repeat(users, 1)`."""
    name, shape = operation_name(func), result.shape
    if name in ("repeat", "tile", "expand", "expand_as", "broadcast_to"):
        alone = shape[1:] == source.shape or (len(source) == 1 and shape[1:] == source.shape[1:])
        return source if alone else None
    before = expression_of(source)
    return before.one if before and name in ("contiguous", "clone") and shape == source.shape else None


def factor_of(func: Callable[..., Any], args: Any, kwargs: Any, used: Sequence[Tensor]) -> float | None:
    """Return what an operation that keeps a shape multiplies the gradient of the one tensor `used` by, if no more."""
    name = operation_name(func)
    if name in ("sub", "__sub__") and len(args) == 2 and args[0] is used[0] and len(used) == 1:
        return 1.0
    if name == "__getitem__" and type(args[1]) is slice:  # of all rows, where the shape stays
        return 1.0
    if kwargs or len(args) != 2 or type(args[1]) not in (int, float):
        return None
    if name in ("mul", "__mul__", "__rmul__", "multiply"):
        return float(args[1])
    return 1.0 / args[1] if name in ("div", "__truediv__", "divide") and args[1] else None


def attributed(used: Tensor, contribution: Contribution, users: int) -> list[tuple[nn.Parameter, Contribution]]:
    """Return what a contribution to an expression is to each parameter behind it, in the smallest form there is."""
    expression = expression_of(used)
    assert expression is not None
    own = _without_autograd(expression, contribution, users)
    if own is not None:
        return [(expression.parameters[0], own)]
    if used.numel() == 1 and type(contribution) is Dense and not used.is_complex():
        return [(p, OfOneNumber(contribution.values.flatten(), used, p)) for p in expression.parameters]
    return [(p, Pulled(contribution, used, p)) for p in expression.parameters]


def _without_autograd(expression: Expression, contribution: Contribution, users: int) -> Contribution | None:
    """Return what a contribution is to the one parameter of which an expression is the transpose or some rows."""
    if not expression.transpose and expression.ids is None:
        return None
    own = contribution.transposed() if expression.transpose else contribution
    if own is None or expression.ids is None:
        return own
    rows = own.at_rows(expression.ids, users)
    return rows if rows is None or expression.factor == 1 else rows.times(expression.factor)
