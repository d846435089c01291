"""Tensors computed from parameters alone, and whose gradient what is computed from them adds to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dprec.gradients.contribution import Aligned, Contribution, Dense, Outer, Pulled, Rows, SharedRows

_ATTRIBUTE = "_dprec_expression"


@dataclass(frozen=True)
class Expression:
    """How a tensor follows from parameters alone."""

    parameters: tuple[nn.Parameter, ...]
    transpose: bool = False  # it is the transpose of the one parameter
    ids: Tensor | None = None  # it is the one parameter's rows at these ids, or the transpose of those


def express(result: Any, expression: Expression) -> Any:
    """Return the result, known from here on for what it is computed from, if a gradient can flow back at all."""
    if isinstance(result, Tensor) and result.requires_grad:
        setattr(result, _ATTRIBUTE, expression)
    return result


def expression_of(value: Tensor) -> Expression | None:
    return getattr(value, _ATTRIBUTE, None)


def sources_of(value: Tensor) -> tuple[nn.Parameter, ...]:
    """Return the parameters behind a trainable tensor: those of its expression, or itself."""
    expression = expression_of(value)
    return expression.parameters if expression else (value,)  # type: ignore[return-value]


def attributed(used: Tensor, contribution: Contribution, users: int) -> list[tuple[nn.Parameter, Contribution]]:
    """Return what a contribution to `used` is to each parameter behind it, in the smallest form there is."""
    expression = expression_of(used)
    if expression is None:
        return [(used, contribution)]  # type: ignore[list-item]
    parameter, ids = expression.parameters[0], expression.ids
    if isinstance(contribution, Outer) and (ids is None or ids.dim() == 1):
        outer = contribution.transposed() if expression.transpose else contribution
        if ids is not None:
            return [(parameter, SharedRows(ids, outer.left, outer.right))]
        if expression.transpose:
            return [(parameter, outer)]
    if ids is not None and not expression.transpose and isinstance(contribution, Dense):
        own = ids.flatten().expand(users, -1)
        rest = contribution.values.shape[1 + ids.dim() :]
        return [(parameter, Rows(own, contribution.values.reshape(*own.shape, *rest)))]
    if ids is not None and not expression.transpose and isinstance(contribution, Aligned):
        own = ids.reshape(users, -1)
        rest = contribution.values.shape[ids.dim() :]
        return [(parameter, Rows(own, contribution.values.reshape(*own.shape, *rest)))]
    return [(p, Pulled(contribution, used, p)) for p in expression.parameters]
