"""The operations that may use a parameter. Each has one rule, registered by the decorator `rule`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from torch import Tensor

from dprec.errors import UserError
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.layouts.layout import operation_name

# For each parameter, or None: the function that turns the gradient of an operation's output into a contribution.
Uses: TypeAlias = "Sequence[tuple[Any, Callable[[Tensor], Contribution]]]"


class Recorder(Protocol):
    """The methods of a tape that rules use."""

    users: int
    real: int  # the first of them, whose losses count; the others' gradients are 0
    again: dict[Any, Any]  # a rule may leave a shorter way here, for later calls of the same signature

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
        """Announce reads of several parameters at once."""

    def name_of(self, value: Tensor) -> str:
        """Return the name of the parameter behind something trainable."""

    def ids_of(self, value: Tensor) -> Tensor | None:
        """Return the ids at which an expression reads its parameter, or None if it does not look up."""

    def by_user(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the users' order as (users, positions, features)."""

    def record(self, output: Tensor, rows: int, uses: Uses, kept: Iterable[Tensor] = ()) -> Tensor:
        """Return `output`, with `rows` rows per user; its gradient becomes a contribution to each parameter in `uses`.

        `kept` are the inputs that the rule reads in the backward pass: they must not change until then.
        """

    def listener(self, uses: Uses, kept: Iterable[Tensor] = ()) -> Callable[[Tensor], None]:
        """Return a function that turns an output's gradient into contributions; the backward pass calls it once."""

    def without_gradient(self, output: Tensor, why: str) -> Tensor:
        """Return `output`; if a gradient reaches it, raise `NoRule` with this reason."""


Operation: TypeAlias = Callable[..., Any]
Rule: TypeAlias = Callable[[Recorder, Operation, Any, Any], Any]  # (tape, operation, args, kwargs) -> result
Way: TypeAlias = Callable[..., Any]  # (tape, *args, **kwargs) -> result
SomeRule = TypeVar("SomeRule", bound=Rule)


@dataclass(frozen=True)
class Entry:
    """An operation's rule."""

    run: Rule
    announces: bool  # the rule announces the rows that it reads; for other rules, all rows count as read
    exchanged: bool  # the rule takes tensors whose first two dimensions are exchanged


RULES: dict[Operation, Entry] = {}

# What to do instead of some operations that have no rule.
HINTS = {
    "batch_norm": "it mixes users, so no clipping can bound one of them; use LayerNorm",
}
MIXING = {"batch_norm"}  # no user has a gradient of their own there, however it is computed


def rule(*operations: Operation, announces: bool = False, exchanged: bool = False) -> Callable[[SomeRule], SomeRule]:
    """Register a function as the rule of these operations, for all calls that use a parameter.

    A rule runs `function(*args, **kwargs)` on detached parameters. It passes to `tape.record`, for every parameter,
    how the output's gradient becomes a `Contribution`, and returns the recorded output. For a call that it does not
    handle it returns `NotImplemented`. Autograd then handles a call of parameters alone; for others, the tape raises
    `NoRule`, and users run by torch.vmap or one by one. A rule that `announces` calls `tape.announce` with the rows
    that it reads. One with `exchanged` also takes time first.

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
