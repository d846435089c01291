"""Which operations may meet a parameter: each has one rule, entered where the rule is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from torch import Tensor

from dprec.errors import UserError
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.layouts.layout import operation_name

if TYPE_CHECKING:
    from dprec.gradients.tape import Tape

# For each parameter, or None: what makes a contribution of the gradient of an operation's output.
Uses: TypeAlias = "Iterable[tuple[Any, Callable[[Tensor], Contribution]]]"
Recorder: TypeAlias = "Tape"  # what a rule asks is among its public methods
Operation: TypeAlias = Callable[..., Any]
Rule: TypeAlias = "Callable[[Recorder, Operation, Any, Any], Any]"  # (tape, operation, args, kwargs) -> result
Way: TypeAlias = Callable[..., Any]  # (tape, *args, **kwargs) -> result
SomeRule = TypeVar("SomeRule", bound="Callable[..., Any]")


@dataclass(frozen=True)
class Entry:
    """An operation's rule."""

    run: Rule
    announces: bool  # the rule says which rows are read; of any other operation it is all of them
    exchanged: bool  # the rule takes tensors whose first two dimensions have changed places


RULES: dict[Operation, Entry] = {}

# What to do instead of some operations that have no rule.
HINTS = {
    "batch_norm": "it mixes users, so no clipping can bound one of them; use LayerNorm",
}
MIXING = {"batch_norm"}  # no user's gradient is their own there, by whatever way it is taken


def rule(*operations: Operation, announces: bool = False, exchanged: bool = False) -> Callable[[SomeRule], SomeRule]:
    """Make a function the rule of these operations, wherever a parameter meets one of them.

    A rule runs `function(*args, **kwargs)` on detached parameters, `tape.record`s for every parameter how the gradient
    of the output becomes a `Contribution`, and returns what that gives. It returns `NotImplemented` for a call that is
    not its own: one of parameters alone is carried back by autograd; for any other, users are taken one by one. A rule
    that `announces` says in `tape.announce` which rows of a table it reads; one for `exchanged` dimensions takes time
    first, too.

    >>> import torch
    >>> @rule(torch.nn.functional.linear)  # doctest: +ELLIPSIS
    ... def mine(tape, function, args, kwargs):
    ...     return NotImplemented
    Traceback (most recent call last):
    dprec.errors.UserError: linear has a rule already, dprec.gradients.operations.linear.linear: put both into one; ...
    """
    if not operations:
        raise UserError("rule() names no operation: give the function that meets the parameter, such as torch.einsum")
    for place, operation in enumerate(operations):
        if isinstance(operation, type) or not callable(operation):
            raise UserError(f"rule({operation!r}) is no function: give the one that is called, such as torch.einsum")
        if operation in RULES or operation in operations[:place]:
            owner = RULES[operation].run if operation in RULES else rule
            raise UserError(
                f"{operation_name(operation)} has a rule already, {owner.__module__}.{owner.__qualname__}: "
                "put both into one; a rule that was changed is read by a new process"
            )

    def enter(function: SomeRule) -> SomeRule:
        RULES.update(dict.fromkeys(operations, Entry(function, announces, exchanged)))
        return function

    return enter
