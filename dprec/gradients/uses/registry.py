"""Which operations may meet a parameter: each has one rule, entered where the rule is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Tensor

from dprec.errors import UserError
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.layouts.layout import operation_name

# For each parameter, or None: what makes a contribution of the gradient of an operation's output.
Uses: TypeAlias = "Sequence[tuple[Any, Callable[[Tensor], Contribution]]]"


class Recorder(Protocol):
    """What a rule asks of the tape."""

    users: int
    real: int  # the first of them, whose losses count; the others' gradients are 0
    again: dict[Any, Any]  # a rule may leave here what it does for calls of its function and of the same form

    def __enter__(self) -> Any:
        """Enter again: a rule may be written with other operations, which have rules of their own."""

    def __exit__(self, *error: Any) -> None: ...

    def trainable(self, value: Any) -> bool:
        """Whether this is a trained parameter, or is computed from trained parameters alone."""

    def rows(self, tensor: Tensor, operation: str, used: Tensor) -> int:
        """Return how many rows of `tensor` belong to each user, or refuse to guess."""

    def announce(self, parameter: Tensor, ids: Tensor | None) -> None:
        """Announce that rows of a parameter are about to be read."""

    def announce_all(self, parameters: Sequence[Tensor], ids: Sequence[Tensor]) -> None:
        """Announce so of several parameters at once."""

    def name_of(self, value: Tensor) -> str:
        """Return the name of the parameter behind something trainable."""

    def ids_of(self, value: Tensor) -> Tensor | None:
        """Return the ids at which something computed from one parameter reads it, if that is what it does."""

    def by_user(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the users' order as (users, positions, features): while unchanged, each time the same."""

    def record(self, output: Tensor, rows: int, uses: Uses, kept: Iterable[Tensor] = ()) -> Tensor:
        """Return `output`, which has `rows` rows of each user, such that its gradient becomes contributions.

        `uses` says of each parameter how. `kept` are inputs that this reads: nobody may change them until then.
        """

    def listener(self, uses: Uses, kept: Iterable[Tensor] = ()) -> Callable[[Tensor], None]:
        """Return what makes contributions of an output's gradient, for an operation that calls it once going back."""

    def without_gradient(self, output: Tensor, why: str) -> Tensor:
        """Return `output`, whose gradient no rule has: where losses depend on it, users are taken one by one."""


Operation: TypeAlias = Callable[..., Any]
Rule: TypeAlias = Callable[[Recorder, Operation, Any, Any], Any]  # (tape, operation, args, kwargs) -> result
Way: TypeAlias = Callable[..., Any]  # (tape, *args, **kwargs) -> result
SomeRule = TypeVar("SomeRule", bound=Rule)


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
