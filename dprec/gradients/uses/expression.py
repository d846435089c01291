"""Tensors computed from parameters alone, and how gradients at them become gradients of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.placed import Part, are_apart, times
from dprec.gradients.contributions.pulled import OfOneNumber, Pulled
from dprec.gradients.layouts.layout import operation_name
from dprec.gradients.layouts.row_wise import aligned, known_as

EXPRESSION = "_dprec_expression"


class Expression(NamedTuple):
    """How a tensor is computed from parameters alone."""

    parameters: tuple[nn.Parameter, ...]
    base: Tensor | None = None  # a parameter or expression that it is a function of, number by number, or:
    transpose: bool = False  # it is the base's transpose
    ids: Tensor | None = None  # it is the base's rows at these ids
    one: Tensor | None = None  # its rows are copies of this one
    version: int = 0  # of the tensor when this was so
    before: int = 0  # of the base


def express(result: Any, expression: Expression) -> Any:
    """Return the result, marked with how it is computed, if it requires a gradient."""
    if isinstance(result, Tensor) and result.requires_grad:
        before = 0 if expression.base is None else expression.base._version
        setattr(result, EXPRESSION, expression._replace(version=result._version, before=before))
    return result


def expression_of(value: Tensor) -> Expression | None:
    """Return how this tensor is computed from parameters; without a base after a change in place."""
    found: Expression | None = getattr(value, EXPRESSION, None)
    if found is None:
        return None
    if found.version != value._version:
        return found._replace(base=None, one=None)
    if found.base is None or isinstance(found.base, nn.Parameter):  # which a strategy may change before it is read
        return found
    return found if found.base._version == found.before else found._replace(base=None)


def ids_of(value: Tensor) -> Tensor | None:
    """Return the ids at which an expression reads rows, if all later functions act number by number; else None."""
    while (found := expression_of(value)) is not None and found.base is not None and not found.transpose:
        if found.ids is not None:
            return found.ids
        value = found.base
    return None


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
        alone = shape[1:] == source.shape or (source.dim() and len(source) == 1 and shape[1:] == source.shape[1:])
        return source if alone else None
    before = expression_of(source)
    return before.one if before and name in ("contiguous", "clone") and shape == source.shape else None


def follows_by_number(func: Callable[..., Any], args: Any) -> bool:
    """Whether each number of a result depends on one number of the input, if both have the same shape."""
    name, keeps = known_as(func)
    return keeps is aligned or (name == "__getitem__" and type(args[1]) is slice)  # of all rows, where the shape stays


def attributed(used: Tensor, contribution: Contribution, users: int) -> list[tuple[nn.Parameter, Contribution]]:
    """Convert a contribution to an expression into contributions to its parameters, in the smallest form."""
    while (expression := expression_of(used)) is not None and expression.base is not None:
        own = _of_base(used, expression.base, expression, contribution, users)
        if own is None:
            break
        used, contribution = expression.base, own
    if expression is None:
        return [(used, contribution)]  # type: ignore[list-item]
    whole = expression.parameters[0]
    if used._base is whole and whole.is_contiguous() and used.dtype == whole.dtype:
        place = tuple(used.shape), used.stride(), int(used.storage_offset() - whole.storage_offset())
        if are_apart(whole.numel(), (place,)):
            return [(whole, Part(contribution, place))]
    if used.numel() == 1 and type(contribution) is Dense and not used.is_complex():
        return [(p, OfOneNumber(contribution.values.flatten(), used, p)) for p in expression.parameters]
    return [(p, Pulled(contribution, used, p)) for p in expression.parameters]


def _of_base(
    used: Tensor, base: Tensor, expression: Expression, contribution: Contribution, users: int
) -> Contribution | None:
    """Convert a contribution to an expression into one to its base; None if only autograd can."""
    if expression.transpose:
        return contribution.transposed()
    if expression.ids is not None:
        return contribution.at_rows(expression.ids, users)
    return times(contribution, torch.autograd.grad(used, base, torch.ones_like(used), retain_graph=True)[0])
