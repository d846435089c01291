"""Computes users' gradients by `torch.vmap`, if the tape cannot: exact, and several times faster than one by one.

Each user has a copy of every parameter. Plain autograd's gradient of the copy is that user's gradient. Copies take no
memory, their gradients do. Look-ups still run by rule, as they do for users taken alone.

Users go one by one if torch cannot do this, such as if values leave it for NumPy. They also do if one call for all
would compute something else: shared random numbers, hooks on gradients, code that looks at the graph.
"""

from __future__ import annotations

import logging
import random
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import (  # type: ignore[attr-defined]
    _add_batch_dim,
    _set_vmap_fallback_warning_enabled,
    get_unwrapped,
    is_batchedtensor,
    maybe_get_bdim,
    peek_interpreter_stack,
)
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack
from torch.utils._pytree import tree_map
from torch.utils.weak import WeakIdKeyDictionary

from dprec.errors import NoRule
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.intercept import tap
from dprec.gradients.layouts.layout import FORM, RANDOM, operation_name, tensors_in
from dprec.gradients.tape import Read, Tape, refuse_no_losses
from dprec.gradients.uses.arguments import at_least_float32, marked
from dprec.gradients.uses.batches import batch_tensors, filled_up, has_row_for_each, select_users
from dprec.gradients.uses.look_up import look_up_by_rule, look_up_of
from dprec.gradients.uses.registry import MIXING

ROOM = 1 << 25  # numbers of users' gradients held at once: 128 MB of float32
LEAST, FILL = 128, 96  # rows that must fit, or users go one by one; and of them at most those that fill up a batch
_log = logging.getLogger(__name__)
_OF_GRAPH = frozenset(  # what they show under vmap is not a user's
    (
        *(torch.autograd.grad, Tensor.backward, Tensor.register_hook),
        *(getattr(Tensor, name).__get__ for name in ("requires_grad", "grad_fn", "is_leaf")),
    )
)
_users_of: WeakIdKeyDictionary = WeakIdKeyDictionary()  # of a model, by its first parameter: users at once, 0 for none


class VmappedTape(Tape):
    """Records users' contributions under `torch.vmap`: look-ups by their rules, everything else by copies.

    >>> layer = nn.Bilinear(2, 2, 1)
    >>> x = torch.randn(5, 2)
    >>> tape = VmappedTape(dict(layer.named_parameters()), users=5)
    >>> losses = tape.losses(lambda x: layer(x, x).squeeze(1), x)
    >>> tape.backward(losses)
    >>> tape.contributions["bias"][0].values.tolist()
    [[1.0], [1.0], [1.0], [1.0], [1.0]]
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], users: int, read: Read | None = None, real: int | None = None
    ) -> None:
        super().__init__(parameters, users, read, real)
        self._copies: dict[str, Tensor] = {}  # (B, *shape)
        self._numbers = 0  # of one user's gradients
        self._batched: list[weakref.ref[Tensor]] = []  # users' values that `losses` met
        self._level = 0  # of vmap

    def losses(self, losses_of: Callable[[Any], Tensor], batch: Any) -> Tensor:
        """Return one loss per user."""

        def of_one(place: Tensor) -> Tensor:
            self._level = peek_interpreter_stack().level()
            own = select_users(batch, place)
            self._batched += map(weakref.ref, batch_tensors(own))
            with self:
                losses = losses_of(own)
            refuse_no_losses(losses, 1)
            return losses[0]

        drawn = _draws()
        try:
            with _without_warnings():
                found: Tensor = torch.vmap(of_one, randomness="different")(torch.arange(self.users).unsqueeze(1))
        finally:
            self._leave_last()
        if _draws() != drawn:
            raise NoRule("losses(batch) draws random numbers that all users would share")
        return found

    def _leave_last(self) -> None:
        """Replace values that the module still holds by the last user's, as after users who go one by one."""
        for value in (kept() for kept in self._batched):
            if value is not None and is_batchedtensor(value):
                torch._C._swap_tensor_impl(value, self._of_all(value)[self.real - 1].detach().clone())
        self._batched.clear()

    def backward(self, losses: Tensor) -> None:
        """Run the backward pass of one loss per user who counts."""
        self._refuse_other_leaves(losses)
        unseen = self._run_back(losses[: self.real])
        if unseen:
            raise NoRule(f"parameter '{next(iter(unseen))}' got a gradient of all users at once")

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, operation_name(func)
        tensors = tensors_in((args, kwargs))
        used = [tensor for tensor in tensors if self.trainable(tensor)]
        if func in _OF_GRAPH and tensors and not used:
            raise NoRule(f"{name} does not tell users apart")
        if name in FORM:
            return func(*args, **kwargs)
        self._precision.refuse(tensors)
        others = peek_interpreter_stack().level() != self._level or any(id(one) not in self._names for one in used)
        if name in RANDOM or (used and (others or name in MIXING or kwargs.get("out") is not None)):
            raise NoRule(f"{name} would not be a user's own")
        result = self._look_up(func, args, kwargs) if used else NotImplemented
        if result is NotImplemented:
            for value in used:
                self.announce(value, None)
            copies = tree_map(lambda leaf: self._copy_of(leaf) if id(leaf) in self._names else leaf, (args, kwargs))
            self._refuse_padded(func, *copies)
            result = func(*copies[0], **copies[1])
        self._batched += (weakref.ref(made) for made in tensors_in(result) if is_batchedtensor(made))
        return result

    def _refuse_padded(self, func: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Refuse a look-up that leaves a row out of the gradient: under vmap it is the first user's row alone."""
        call = look_up_of(func, args, kwargs, is_batchedtensor)
        if call is not None and (call.given or {}).get("padding_idx") is not None:
            raise NoRule(f"{operation_name(func)} with padding_idx of a computed table")

    def _copy_of(self, parameter: Tensor) -> Tensor:
        """Return the users' copies of a parameter, as one user's under vmap."""
        name = self._names[id(parameter)]
        with temporarily_pop_interpreter_stack(), torch.inference_mode(False), torch.enable_grad():
            if name not in self._copies:
                self._make_room(parameter.numel())
                own = parameter.detach().expand(self.users, *parameter.shape)
                self._copies[name] = tap(own, partial(self._receive, name))
        return _add_batch_dim(self._copies[name], 0, self._level)  # type: ignore[no-any-return]

    def _make_room(self, numbers: int) -> None:
        """Refuse so many more numbers of each user, if there are too many with those before."""
        self._numbers += numbers
        if max(self.users, LEAST) * self._numbers > ROOM:
            raise TooMany(self._numbers)

    def _receive(self, name: str, gradient: Tensor) -> None:
        self.contributions[name].append(Dense(at_least_float32(gradient).contiguous()))

    def _look_up(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a look-up of all users by its rule; NotImplemented if there is none for this call."""
        call = look_up_of(func, args, kwargs, self.trainable)
        if call is None or len(tensors_in((args, kwargs))) > 2:
            return NotImplemented
        with temporarily_pop_interpreter_stack(), torch.inference_mode(False), torch.enable_grad():
            if not is_batchedtensor(call.ids):  # then all users read these
                self._make_room(call.ids.numel() * call.table[0].numel())
            own = self._of_all(call.ids)  # (B, ...)
            rows = own.shape[1] if own.dim() > 1 else 1
            flat = marked(own.reshape(self.users * rows, *own.shape[2:]), rows)
            try:
                found = look_up_by_rule(self, func, call, flat)
            except NoRule:
                return NotImplemented
            if found is NotImplemented:
                return NotImplemented
            found = found.view(self.users, rows, *found.shape[1:]) if own.dim() > 1 else found
        return _add_batch_dim(found, 0, self._level)

    def _of_all(self, value: Tensor) -> Tensor:
        """Return (B, ...) all users' values of a tensor that `losses` sees as one user's."""
        if not is_batchedtensor(value):
            return value.expand(self.users, *value.shape)
        return get_unwrapped(value).movedim(maybe_get_bdim(value), 0)  # type: ignore[no-any-return]


class TooMany(NoRule):
    """Copies of parameters for so many users would have gradients of too many numbers."""

    def __init__(self, numbers: int) -> None:
        super().__init__(f"gradients of {numbers:,} numbers a user")
        self.room = ROOM // numbers - FILL if ROOM // numbers >= LEAST else 0  # for how many users there is


def vmapped_users(
    parameters: Mapping[str, nn.Parameter],
    losses_of: Callable[[Any], Tensor],
    batch: Any,
    read: Read | None,
    within: Callable[[Any], AbstractContextManager[Any]],
) -> Iterator[tuple[Any, Tensor, VmappedTape]]:
    """Yield parts of the batch, their losses and their tapes; stop at the first failure.

    Whether users go this way depends on the model alone, never on who else is in the batch: rounding differs.
    """
    model = next(iter(parameters.values()))
    users, done = _users_of.get(model, len(batch)), 0
    on_cpu = all(tensor.device.type == "cpu" for tensor in batch_tensors(batch))  # elsewhere nobody has tried it
    while users and done < len(batch) and on_cpu and has_row_for_each(batch):
        part = batch if users >= len(batch) else select_users(batch, range(done, min(done + users, len(batch))))
        filled = filled_up(part, each=1)
        tape = VmappedTape(parameters, len(filled), read, len(part))
        try:
            with within(part):
                losses = tape.losses(losses_of, filled)
            tape.backward(losses)
        except TooMany as many:
            users = _users_of[model] = many.room
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever is wrong, users taken one by one show it
            _log.debug("users are taken one by one: under torch.vmap, %s", error)
            users = _users_of[model] = 0
        else:
            yield part, losses.detach(), tape
            done += len(part)


def _draws() -> Any:
    """Return the states of Python's and NumPy's generators."""
    state: Any = np.random.get_state()  # noqa: NPY002  models draw from it
    return random.getstate(), bytes(state[1]), state[2]


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Turn off torch's warning about operations without a batching rule, which vmap runs user by user."""
    _set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        _set_vmap_fallback_warning_enabled(True)
