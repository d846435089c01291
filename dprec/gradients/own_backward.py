"""Losses that run a backward pass of their own, or set hooks on what autograd saves, are refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from dprec.errors import UncoveredUse

MESSAGE = "losses(batch) takes a backward pass by itself, whose gradients have no noise: return the losses alone"
SAVED = (
    "losses(batch) sets hooks on what autograd saves (saved_tensors_hooks, torch.utils.checkpoint), which see all "
    "users' rows at once: leave them out, and make micro-batches smaller"
)


@contextmanager
def no_own_backward(parameters: Mapping[str, Tensor]) -> Iterator[None]:
    """Refuse losses that add to any `.grad`; whatever else fails in here may follow from that.

    >>> import torch
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> with no_own_backward({"weight": weight}):  # doctest: +ELLIPSIS
    ...     torch.autograd.backward(weight.sum())
    Traceback (most recent call last):
    dprec.errors.UncoveredUse: losses(batch) takes a backward pass by itself, ...
    """
    before = _gradients(parameters)
    try:
        with _no_sum_of_gradients():
            yield
    except RuntimeError as error:
        if _gradients(parameters) != before:
            raise UncoveredUse(MESSAGE) from error
        raise
    if _gradients(parameters) != before:
        raise UncoveredUse(MESSAGE)


@contextmanager
def _no_sum_of_gradients() -> Iterator[None]:
    """Refuse `torch.autograd.backward` in this thread: what it adds to a `.grad` has no layout."""
    run, thread = torch.autograd._engine_run_backward, get_ident()

    def refused(*args: Any, accumulate_grad: bool, **kwargs: Any) -> Any:
        if accumulate_grad and get_ident() == thread:
            raise UncoveredUse(MESSAGE)
        return run(*args, accumulate_grad=accumulate_grad, **kwargs)

    torch.autograd._engine_run_backward = refused
    try:
        yield
    finally:
        torch.autograd._engine_run_backward = run


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
