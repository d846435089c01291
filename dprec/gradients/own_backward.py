"""Losses that run a backward pass of their own are refused; hooks that they set see one user's rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dprec.errors import MixedUsers, UncoveredUse

MESSAGE = "losses(batch) takes a backward pass by itself, whose gradients have no noise: return the losses alone"
SAVED = (
    "losses(batch) sets hooks on what autograd saves (saved_tensors_hooks, torch.utils.checkpoint), which see all "
    "users' rows at once: leave them out, and make micro-batches smaller"
)
APART = 1e-3  # of the norm of what a hook returns: by so much it may differ when it sees all users at once

Hook = Callable[[Tensor], Any]


@contextmanager
def no_own_backward(parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """Refuse losses that write to a parameter's `.grad`; whatever else fails in here may follow from that.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> with no_own_backward({"weight": weight}):  # doctest: +ELLIPSIS
    ...     torch.autograd.backward(weight.sum())
    Traceback (most recent call last):
    dprec.errors.UncoveredUse: losses(batch) takes a backward pass by itself, ...
    """
    before = _gradients(parameters)
    try:
        yield
    except RuntimeError as error:
        if _gradients(parameters) != before:
            raise UncoveredUse(MESSAGE) from error
        raise
    if _gradients(parameters) != before:
        raise UncoveredUse(MESSAGE)


@contextmanager
def no_hooks_on_saved() -> Iterator[None]:
    """Refuse losses that set hooks on what autograd saves: one user could decide how exactly all others' is kept.

    >>> with no_hooks_on_saved(), torch.autograd.graph.save_on_cpu():  # doctest: +ELLIPSIS
    ...     pass
    Traceback (most recent call last):
    dprec.errors.UncoveredUse: losses(batch) sets hooks on what autograd saves ...
    """
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(SAVED):
            yield
    except RuntimeError as error:
        if str(error) == SAVED:
            raise UncoveredUse(SAVED) from error
        raise


def _gradients(parameters: Mapping[str, Tensor]) -> list[tuple[int, int] | None]:
    with torch._C.DisableTorchFunction():  # a tape would take it for a read of all rows
        grads = [parameter.grad for parameter in parameters.values()]
    return [None if grad is None else (id(grad), grad._version) for grad in grads]


def by_user(hook: Hook, users: int) -> Hook:
    """Return a hook that gives each user what this one gives for the user's rows, which are in the users' order.

    A hook that sees all rows can mix them, such as one that bounds their norm, and do so only where they are large.
    What flows on never does; a hook that would give something else for all rows at once is refused.

    >>> by_user(lambda gradient: gradient / gradient.max(), users=2)(torch.tensor([1.0, 1.0, 4.0, 2.0]))
    Traceback (most recent call last):
    dprec.errors.MixedUsers: what a hook on a gradient in losses(batch) returns for a user depends on who else is in \
the batch: compute row u from row u alone
    """

    def each(gradient: Tensor) -> Tensor:
        apart = torch.cat([_of(hook, own) for own in gradient.chunk(users)] if users else [gradient])
        if users > 1 and bool(torch.isfinite(apart).all()):
            together, least = _of(hook, gradient), max(APART, 16 * torch.finfo(gradient.dtype).eps)
            if together.shape != apart.shape or not bool((together - apart).norm() <= least * apart.norm()):
                raise MixedUsers(
                    "what a hook on a gradient in losses(batch) returns for a user depends on who else is in the "
                    "batch: compute row u from row u alone"
                )
        return apart

    return each


def _of(hook: Hook, gradient: Tensor) -> Tensor:
    own = gradient.clone()
    given = hook(own)
    return own if given is None else given
