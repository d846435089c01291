"""Runs users one by one, if an operation has no rule or row order was lost, and `vmapped` cannot run them together.

For one user, plain autograd gives that user's gradient, over all uses of all parameters. This is exact and slow, one
forward and backward pass for each user, so it is the last resort. Look-ups still run by rule: tables cost no more than
before, and strategies still receive each look-up's ids.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack

from dprec.errors import NoRule, UncoveredUse
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.look_ups import Rows
from dprec.gradients.layouts import layout
from dprec.gradients.layouts.layout import FORM, operation_name
from dprec.gradients.tape import Read, Tape
from dprec.gradients.uses.arguments import at_least_float32, marked
from dprec.gradients.uses.batches import Alone, has_row_for_each, select_alone
from dprec.gradients.uses.look_up import look_up_by_rule, look_up_of
from dprec.gradients.uses.registry import MIXING


class OneUser(Tape):
    """Records one user's contributions: look-ups by their rules, everything else by plain autograd.

    >>> import torch
    >>> layer = nn.Bilinear(2, 2, 1)
    >>> x = torch.ones(1, 2)
    >>> with OneUser(dict(layer.named_parameters())) as tape:
    ...     loss = layer(x, x).squeeze(1)
    >>> tape.backward(loss)
    >>> sorted(tape.contributions)
    ['bias', 'weight']
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], read: Read | None = None) -> None:
        super().__init__(parameters, users=1, read=read)
        self._looked_up: set[int] = set()

    def rows(self, tensor: Tensor, operation: str, used: Tensor) -> int:
        """Every row belongs to the one user."""
        return tensor.shape[0] if tensor.dim() else 1

    def asked_for_gradients(self, used: Tensor) -> UncoveredUse:
        return UncoveredUse(
            f"losses(batch) computes a gradient through rows looked up in '{self.name_of(used)}': let it compute only "
            "gradients that depend on no table"
        )

    def _reads(self, used: Tensor) -> bool:
        """Whether rows of it were looked up, which takes it out of autograd's graph."""
        return id(used) in self._looked_up

    def backward(self, losses: Tensor) -> None:
        self._refuse_shape(losses)
        if not losses.requires_grad:
            return  # nothing that is trained has a part in this user's loss
        self._refuse_other_leaves(losses)
        for name, gradient in self._run_back(losses).items():
            self.contributions.setdefault(name, []).append(_contribution(gradient))

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = layout.tensors_in((args, kwargs))
        self._precision.refuse(tensors)
        used = [tensor for tensor in tensors if self.trainable(tensor)]
        if func is torch.autograd.grad and (read := [tensor for tensor in used if self._reads(tensor)]):
            raise self.asked_for_gradients(read[0])
        refused = operation_name(func) in MIXING or kwargs.get("out") is not None
        if func is Tensor.backward or (used and refused):
            return super().__torch_function__(func, types, args, kwargs)  # which refuses it
        if used and peek_interpreter_stack() is None:
            read = self._look_up(func, args, kwargs)
            if read is not NotImplemented:
                return read
        if operation_name(func) not in FORM:
            for value in used:
                self.announce(value, None)
        return func(*args, **kwargs)

    def _look_up(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a look-up by its rule, with per-user or shared ids."""
        call = look_up_of(func, args, kwargs, self.trainable)
        if call is None:
            return NotImplemented
        ids = marked(call.ids.view_as(call.ids), 1)
        self._looked_up.add(id(call.table))
        try:
            return look_up_by_rule(self, func, call, ids)
        except NoRule:
            return NotImplemented


def one_by_one(batch: Any, why: NoRule, line: str, alone: Alone = select_alone, first: int = 0) -> Iterator[Any]:
    """Yield a batch of each user from `first` on, as `alone` gives it of a place, and say once in a process why.

    A batch that does not have a row for each user is refused.
    """
    if not has_row_for_each(batch):
        raise why
    _say(f"{why} (in {line})")
    for user in range(first, len(batch)):
        yield alone(batch, user)


@functools.cache
def _say(why: str) -> None:
    warnings.warn(
        f"{why}. Until then each user's gradient is taken alone: it is as exact, and slower (docs/forms.md)",
        UserWarning,
        stacklevel=2,
    )


def _contribution(gradient: Tensor) -> Contribution:
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        return Rows(gradient.indices(), at_least_float32(gradient.values()).unsqueeze(0))
    return Dense(at_least_float32(gradient).unsqueeze(0))
