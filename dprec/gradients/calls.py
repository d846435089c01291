"""Caches whether a rule applies, and the result's layout, by call signature (`Form`).

A signature is the operation, the shapes, types and layouts of its tensors, and its other arguments. Batches of one
bucket have the same signatures.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack

from dprec.gradients.layouts.layout import ATTRIBUTE, Layout
from dprec.gradients.uses.expression import EXPRESSION
from dprec.gradients.uses.low_precision import LOW
from dprec.gradients.uses.registry import Way

Form: TypeAlias = "tuple[Any, ...] | None"
MOST = 1 << 13  # signatures that are remembered
_PLAIN = frozenset((bool, int, float, str, type(None), torch.dtype, torch.device))
_OF_VALUES = frozenset((Tensor.__getitem__, Tensor.__setitem__))  # numbers in a tensor decide whose rows these are
_OF_SIZES = frozenset((Tensor.view, Tensor.reshape, torch.reshape))  # the number of users is among their arguments


def form_of(function: Callable[..., Any], args: Any, kwargs: Any, users: int, parameters: Container[int]) -> Form:
    """Return the call's signature; None if more than the signature, such as values, may decide the result.

    For tensors in the users' order, rows per user count, not the number of users. `parameters` has the trained ids.

    >>> three, four = (torch.ones(users, 2) for users in (3, 4))
    >>> for each in (three, four):
    ...     setattr(each, ATTRIBUTE, Layout(1))
    >>> form_of(torch.sum, (three, 1), {}, 3, ()) == form_of(torch.sum, (four, 1), {}, 4, ())
    True
    >>> form_of(torch.sum, (three, 1), {}, 3, ()) == form_of(torch.sum, (three, 0), {}, 3, ())
    False
    """
    if function in _OF_VALUES:
        return None
    form: tuple[Any, ...] = (function, *kwargs)
    by_user = False
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind in _PLAIN:
            form = (form, kind, value if value != users or function not in _OF_SIZES else "users")
        elif kind is Tensor or kind is nn.Parameter:
            marks, shape, dtype = value.__dict__, value.shape, value.dtype
            if dtype in LOW:
                return None
            if EXPRESSION in marks:
                form = (form, EXPRESSION, shape, dtype)
                continue
            known: Layout | None = None
            if ATTRIBUTE in marks:
                known = marks[ATTRIBUTE]
            elif kind is Tensor and peek_interpreter_stack() is not None:
                return None  # a transform of torch.func may have made it
            if kind is nn.Parameter or (value.requires_grad and value.is_leaf):
                form = (form, known, shape, dtype, id(value) in parameters)
            elif known is not None and known.rows_per_user and shape and shape[0] == users * known.rows_per_user:
                form, by_user = (form, known.rows_per_user, shape[1:], dtype, value.requires_grad), True
            else:
                form = (form, known, shape, dtype)
        elif kind is tuple:
            for each in value:
                if type(each) is not int:
                    return None
            form = (form, value)
        else:
            return None
    return form if by_user else (form, users)


class Decision(NamedTuple):
    """The cached decision for a signature: the result's kind and layout, or that a rule runs."""

    kind: Any  # a type; None: the operation's rule runs
    layout: Layout | None = None
    shape: tuple[int, ...] = ()  # without the first dimension
    dtype: torch.dtype | None = None
    way: Way | None = None  # a shorter way than the rule, if there is one

    def mark(self, result: Any, users: int) -> bool:
        """Set the result's layout; return False if its kind, shape or dtype differs from the first call's."""
        if type(result) is not self.kind or self.layout is None:
            return type(result) is self.kind and (self.dtype is None or result.dtype is self.dtype)
        shape, rows = result.shape, self.layout.rows_per_user
        if result.dtype is not self.dtype or (rows and (shape[0] != users * rows or shape[1:] != self.shape)):
            return False
        result.__dict__[ATTRIBUTE] = self.layout
        return True


DECISIONS: dict[Form, Decision] = {}


def decision_of(result: Any) -> Decision | None:
    """Return the decision for the result of a call without side effects; None if it has several results."""
    if type(result) is Tensor:
        shape = result.shape[1:] if result.dim() else ()
        return Decision(Tensor, getattr(result, ATTRIBUTE, None), shape, result.dtype)
    return Decision(type(result)) if type(result) in _PLAIN or type(result) is torch.Size else None


def remember(form: Form, decision: Decision | None) -> None:
    if form is not None and decision is not None:
        if len(DECISIONS) >= MOST:
            DECISIONS.clear()
        DECISIONS[form] = decision
