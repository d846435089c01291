"""Functions applied element by element with broadcasting: x + p, scale * x, where(mask, x, p), …"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dprec.errors import NoRule, UncoveredUse
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.dense import Aligned, Dense
from dprec.gradients.layouts.follow import follow
from dprec.gradients.layouts.layout import layout_of, writes_first_argument
from dprec.gradients.uses.arguments import at_least_float32, named
from dprec.gradients.uses.expression import without_copies
from dprec.gradients.uses.registry import Operation, Recorder, rule

OF_ELEMENTS: list[Operation] = [
    *(torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__),
    *(torch.sub, Tensor.sub, Tensor.sub_, Tensor.__sub__, Tensor.__rsub__, Tensor.__isub__, torch.rsub),
    *(torch.mul, Tensor.mul, Tensor.mul_, Tensor.__mul__, Tensor.__rmul__, Tensor.__imul__, torch.multiply),
    *(torch.div, Tensor.div, Tensor.div_, Tensor.__truediv__, Tensor.__rtruediv__, Tensor.__itruediv__),
    *(torch.where, Tensor.where, torch.lerp, Tensor.lerp, torch.addcmul, Tensor.addcmul),
    *(torch.maximum, Tensor.maximum, torch.minimum, Tensor.minimum, torch.pow, Tensor.pow, Tensor.__pow__),
]


@rule(*OF_ELEMENTS)
def elementwise(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """Give every output element its own copy of the parameter; autograd finds the gradient of each copy."""
    operands = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor)]
    trained = [a for a in operands if tape.trainable(a)]
    data = [a for a in operands if layout_of(a) is not None]
    if not data or (operands[0] is trained[0] and writes_first_argument(function.__name__)):
        return NotImplemented
    shape, used = _broadcast(operands), trained[0]
    lead = max(data, key=lambda a: a.ndim)
    rows = tape.rows(lead, function.__name__, used)
    if lead.ndim < len(shape) or lead.shape[0] != shape[0]:
        raise UncoveredUse(
            f"parameter '{tape.name_of(used)}' is broadcast over the users' dimension by {function.__name__}: "
            "keep users first in the other operand"
        )

    def copied(operand: Any) -> Any:
        return copied_for_users(tape, operand, shape, rows) if tape.trainable(operand) else operand

    args, kwargs = tuple(map(copied, args)), {name: copied(a) for name, a in kwargs.items()}
    result = function(*args, **kwargs)
    follow(function, args, kwargs, result, tape.users)
    return result


def _broadcast(operands: list[Tensor]) -> torch.Size:
    """Return the operands' broadcast shape, mostly that of the one with the most dimensions."""
    shape = max((operand.shape for operand in operands), key=len)
    for operand in operands:
        if operand.shape != shape[len(shape) - operand.ndim :]:
            return torch.broadcast_shapes(*(each.shape for each in operands))
    return shape


def copied_for_users(tape: Recorder, operand: Tensor, shape: torch.Size, rows: int) -> Tensor:
    """Return the parameter copied to (users * rows, …): each user's copy has a gradient of its own."""
    operand = without_copies(operand)
    if operand.is_complex():
        with tape:
            parts = torch.view_as_real(operand)
            return torch.view_as_complex(copied_for_users(tape, parts, torch.Size((*shape, 2)), rows))
    if _by_place(tape, operand, shape):
        raise NoRule(
            f"parameter '{tape.name_of(operand)}' meets each user by their place in the batch: expand it to the batch, "
            "or index it by position or by the user's own data"
        )
    copies = operand.detach().expand(shape)
    return tape.record(copies, rows, [(operand, lambda g: summed(g, operand, tape.users, rows))])


def _by_place(tape: Recorder, operand: Tensor, shape: torch.Size) -> bool:
    return operand.ndim == len(shape) and operand.shape[0] > 1 and not _same_for_all_users(tape, operand)


def _same_for_all_users(tape: Recorder, operand: Tensor) -> bool:
    ids = tape.ids_of(operand)
    if ids is None:
        return operand.stride(0) == 0
    own = ids.reshape(tape.users, -1)
    return bool((own == own[:1]).all())


def summed(gradient: Tensor, parameter: Tensor, users: int, rows: int) -> Contribution:
    """Sum the copies' gradient (users * rows, …) over the dimensions along which the parameter was copied."""
    gradient = at_least_float32(gradient.detach())
    shape = (1,) * (gradient.ndim - parameter.ndim) + tuple(parameter.shape)
    copied = [d for d, size in enumerate(shape) if d > 0 and size == 1 and gradient.shape[d] != 1]
    if shape[0] > 1:
        whole = gradient.sum(copied, keepdim=True) if copied else gradient
        return Aligned(whole.reshape(parameter.shape), rows)
    own = gradient.reshape(users, rows, *gradient.shape[1:])
    if rows > 1 or copied:
        own = own.sum((1, *(1 + d for d in copied)))
    return Dense(own.reshape(users, *parameter.shape))


@rule(torch.prelu)
def prelu(tape: Recorder, function: Operation, args: Any, kwargs: Any) -> Any:
    """x where it is positive, scale · x elsewhere, with a scale for all features or for each."""
    given = named(("input", "weight"), args, kwargs)
    x, scale = given["input"], given["weight"]
    if tape.trainable(x) or layout_of(x) is None or x.ndim < 2:
        return NotImplemented
    with tape:
        return torch.where(x > 0, x, x * scale.reshape(-1, *[1] * (x.ndim - 2)))
