"""Users whom the tape cannot tell apart, under `torch.vmap`: as exact as one by one, and several times faster.

Each user has an own copy of every parameter, so that what plain autograd gives for the copy is that user's gradient.
Copies cost no memory, their gradients do. Look-ups keep their rules, as they do for users taken alone.

torch cannot run everything so, such as what leaves it for NumPy. Then users are taken one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import (
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
from dprec.gradients.layouts.layout import FORM, operation_name, tensors_in
from dprec.gradients.tape import SIZES, Read, Tape, refuse_no_losses
from dprec.gradients.uses.arguments import at_least_float32, marked
from dprec.gradients.uses.batches import filled_up, has_row_for_each, select_users
from dprec.gradients.uses.look_up import LookUpCall, look_up_of
from dprec.gradients.uses.registry import MIXING, RULES

ROOM = 1 << 25  # numbers of users' gradients held at once: 128 MB of float32
LEAST, FILL = 128, 96  # rows that must fit, or users go one by one; and of them at most those that fill up a batch
_log = logging.getLogger(__name__)
_SEES_ALL = (torch.autograd.grad, Tensor.backward, Tensor.register_hook)  # or not whose gradient it is
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
        self._level = 0  # of vmap

    def losses(self, losses_of: Callable[[Any], Tensor], batch: Any) -> Tensor:
        """Return one loss per user."""

        def of_one(place: Tensor) -> Tensor:
            self._level = _level()
            with self:
                losses = losses_of(select_users(batch, place))
            refuse_no_losses(losses, 1)
            return losses[0]

        with _without_warnings():
            found: Tensor = torch.vmap(of_one, randomness="different")(torch.arange(self.users).unsqueeze(1))
        return found

    def backward(self, losses: Tensor) -> None:
        """Run the backward pass of one loss per user who counts."""
        self._refuse_other_leaves(losses)
        unseen = self._run_back(losses[: self.real])
        if unseen:
            raise NoRule(f"parameter '{next(iter(unseen))}' got a gradient of all users at once")

    def __torch_function__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in SIZES:
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        self._precision.refuse(tensors)
        name = operation_name(func)
        if func in _SEES_ALL:
            raise NoRule(f"{name} does not tell users apart")
        used = [tensor for tensor in tensors if self.trainable(tensor)]
        if not used:
            result = func(*args, **kwargs)
            made = not tensors and type(result) is Tensor and not is_batchedtensor(result)
            return self._owned(result) if made else result
        covered = all(id(tensor) in self._names for tensor in used) and _level() == self._level
        if not covered or name in MIXING or kwargs.get("out") is not None:
            raise NoRule(f"{name} has no gradient for each user")
        read = self._look_up(func, args, kwargs)
        if read is not NotImplemented:
            return read
        if name not in FORM:
            for value in used:
                self.announce(value, None)
        args, kwargs = tree_map(lambda leaf: self._copy_of(leaf) if id(leaf) in self._names else leaf, (args, kwargs))
        return func(*args, **kwargs)

    def _copy_of(self, parameter: Tensor) -> Tensor:
        """Return the user's own copy."""
        name = self._names[id(parameter)]
        with temporarily_pop_interpreter_stack():
            if name not in self._copies:
                own = parameter.detach().expand(self.users, *parameter.shape)
                self._copies[name] = tap(own, partial(self._receive, name))
                numbers = sum(copy[0].numel() for copy in self._copies.values())
                if max(self.users, LEAST) * numbers > ROOM:
                    raise TooMany(numbers)
        return _add_batch_dim(self._copies[name], 0, self._level)  # type: ignore[no-any-return]

    def _receive(self, name: str, gradient: Tensor) -> None:
        self.contributions[name].append(Dense(at_least_float32(gradient).contiguous()))

    def _owned(self, made: Tensor) -> Tensor:
        """Return a tensor that `losses` makes of sizes as each user's own, into which users' values may be written."""
        with temporarily_pop_interpreter_stack():
            own = made.expand(self.users, *made.shape).clone()
        return _add_batch_dim(own, 0, self._level)  # type: ignore[no-any-return]

    def _look_up(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Read all users' rows by the rule for it."""
        call = look_up_of(func, args, kwargs, self.trainable)
        if call is None or len(tensors_in((args, kwargs))) > 2:
            return NotImplemented
        with temporarily_pop_interpreter_stack():
            own = self._of_all(call.ids)  # (B, ...)
            rows = own.shape[1] if own.dim() > 1 else 1
            flat = marked(own.reshape(self.users * rows, *own.shape[2:]), rows)
            try:
                found = self._by_rule(func, call, flat)
            except NoRule:
                return NotImplemented
            if found is NotImplemented:
                return NotImplemented
            found = found.view(self.users, rows, *found.shape[1:]) if own.dim() > 1 else found
        return _add_batch_dim(found, 0, self._level)

    def _by_rule(self, func: Callable[..., Any], call: LookUpCall, ids: Tensor) -> Any:
        if call.given is None:
            return RULES[Tensor.__getitem__].run(self, Tensor.__getitem__, (call.table, ids), {})
        given = {name: ids if value is call.ids else value for name, value in call.given.items()}
        return RULES[func].run(self, func, (), given)

    def _of_all(self, value: Tensor) -> Tensor:
        """Return all users' values of what `losses` meets as one user's."""
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
    """Yield users, as many as there is room for, their losses, and what they add; none from where it fails.

    By which way a user is taken must not depend on who else is there: it follows from the model.
    """
    model = next(iter(parameters.values()))
    users, done = _users_of.get(model, len(batch)), 0
    while users and done < len(batch) and has_row_for_each(batch):
        part = batch if users >= len(batch) else select_users(batch, range(done, min(done + users, len(batch))))
        filled = filled_up(part)
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


def _level() -> int:
    return peek_interpreter_stack().level()  # type: ignore[no-any-return]


@contextmanager
def _without_warnings() -> Iterator[None]:
    """torch warns of operations that it runs for each user in turn."""
    _set_vmap_fallback_warning_enabled(False)
    try:
        yield
    finally:
        _set_vmap_fallback_warning_enabled(True)
