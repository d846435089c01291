"""The order of a run's steps: a batch is drawn, its gradient is made, the optimizer takes its step.

Hooks on the optimizer report its steps. A call out of this order is refused in one line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

from dprec.checks.state import State, changed, quick_state
from dprec.errors import UserError

Phase = Literal["idle", "lost", "drawn", "filled", "stepping"]


class StepOrder:
    """State machine of a step: drawn, filled, stepping, idle; lost if an error ended a draw.

    Args:
        optimizer: takes the steps.
        before_update: called in the optimizer's step, right before it changes any weight.
        after_update: called in the optimizer's step, right after it.
        by_closure: whether the optimizer's closure makes the gradient, as in Lightning's automatic optimization.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        before_update: Callable[[], None],
        after_update: Callable[[], None],
        by_closure: bool = False,
    ) -> None:
        self.phase: Phase = "idle"
        self.pending_batch: list[Any] | None = None  # the batch last drawn
        self._lost = ""  # the error that ended a draw
        self._optimizer: Any = optimizer
        self._before_update, self._after_update, self._by_closure = before_update, after_update, by_closure
        self._gradients: FilledGradients | None = None
        self._depth = 0  # how deep optimizers' steps are nested
        for handle in getattr(optimizer, "_dprec_hooks", ()):  # an earlier training's
            handle.remove()
        self._hooks = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        )
        vars(optimizer)["_dprec_hooks"] = self._hooks

    def end(self) -> None:
        """Remove the hooks: the optimizer may step at any time again."""
        for handle in self._hooks:
            handle.remove()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """A context for a draw. After an error or Ctrl-C no step may follow: it may reveal who was drawn."""
        try:
            yield
        except BaseException as error:
            self.phase, self._lost = "lost", str(error).partition("\n")[0] or type(error).__name__
            raise

    def drawn(self, batch: list[Any]) -> None:
        """Note that a batch was drawn."""
        self.phase, self.pending_batch = "drawn", batch

    def filling(self) -> None:
        """Note that the gradient is about to be made; refuse it if no batch is waiting for one."""
        if self.phase == "filled":
            raise UserError("backward ran twice for one batch: call optimizer.step() after each")
        self.refuse_lost()
        if self.phase == "idle":
            raise UserError("no batch was drawn for this step: write `for batch in training:` around it")
        # Of the optimizer's hooks, run ours last before its step, and first after it.
        self._optimizer._optimizer_step_pre_hooks.move_to_end(self._hooks[0].id)
        self._optimizer._optimizer_step_post_hooks.move_to_end(self._hooks[1].id, last=False)

    def filled(self, gradients: FilledGradients) -> None:
        """Note that the gradient was made."""
        self._gradients, self.phase = gradients, "filled"

    def put_back(self) -> None:
        """Restore every parameter's gradient, which a zero_grad removed."""
        if self._gradients is not None:
            self._gradients.put_back()

    def refuse_skipped(self) -> None:
        """Refuse to go on after a batch whose step was not taken, or not to its end."""
        if self.phase == "drawn":
            raise UserError(
                "a batch was drawn and no step was taken with it: call training.step(batch) for each batch, even an "
                "empty one"
            )
        if self.phase == "filled":
            raise UserError(
                "a batch's gradient was not followed by optimizer.step(): call it for each batch; for larger batches "
                "raise expected_batch, and set max_users"
            )
        self.refuse_lost()
        if self.phase == "stepping":
            raise UserError(
                "an error interrupted optimizer.step(), so the model may be half updated: restart from what was saved"
            )

    def refuse_lost(self) -> None:
        """Refuse to go on after a draw that an error ended."""
        if self.phase == "lost":
            raise UserError(
                f"an error ended a draw ({self._lost}), and training on would reveal who was in it: fix the cause, "
                "such as by max_users, and restart from what was saved"
            )

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._depth += 1
        if self._depth > 1:  # this optimizer's step calls another's
            return None
        with self._ending():
            if self._by_closure and "closure" in kwargs:
                return args, {**kwargs, "closure": partial(self._after_closure, kwargs["closure"])}
            if any(callable(each) for each in (*args[1:], *kwargs.values())):
                raise UserError("optimizer.step(closure) asks for a loss of its own: call it without")
            self.allow_step()
        return None

    def _after_closure(self, closure: Callable[[], Any]) -> Any:
        """Run the closure, which makes the gradient; the optimizer's step follows directly."""
        with self._ending():
            loss = closure()
            self.allow_step()
        return loss

    def allow_step(self) -> None:
        """Allow the optimizer's step if the private gradient is unchanged; refuse it otherwise."""
        if self.phase != "filled" or self._gradients is None:
            raise UserError(
                "optimizer.step() without a private gradient: call training.backward(batch) once before it, or let "
                "Lightning or training.step(batch) call it"
            )
        self._gradients.refuse_changed()
        self._before_update()
        self.phase = "stepping"

    @contextmanager
    def _ending(self) -> Iterator[None]:
        """Count the optimizer's step as ended if an error is raised within."""
        try:
            yield
        except BaseException:
            self._depth = 0
            raise

    def _after_step(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.phase, self._gradients = "idle", None
            self._after_update()


# Between private steps, the gradient must stay as it was made, and only the optimizer may change the weights.


class FilledGradients:
    """The gradients of one step, as they were made."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self._made = {name: p.grad for name, p in parameters.items()}
        self._state = self._now()

    def put_back(self) -> None:
        """Restore every parameter's gradient, which a zero_grad removed."""
        for name, parameter in self._parameters.items():
            parameter.grad = self._made[name]

    def refuse_changed(self) -> None:
        """Refuse gradients that were changed since they were made."""
        now = self._now()
        for name, parameter in self._parameters.items():
            if parameter.grad is not self._made[name] or now.get(name) != self._state.get(name):
                raise UserError(
                    f"'{name}'.grad was changed before the optimizer's step: leave out zero_grad, loss.backward(), "
                    "gradient clipping and scalers, and put penalties into the losses"
                )

    def _now(self) -> Mapping[str, object]:
        grads = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        whole = {name: grad for name, grad in grads.items() if grad.layout == torch.strided}
        rows = {name: grad._values() for name, grad in grads.items() if name not in whole}
        return quick_state({**whole, **rows})


def refuse_written(before: State, after: State) -> None:
    """Refuse a model that was written to between two steps."""
    if written := changed(before, after):
        raise UserError(
            f"'{written[0]}' was written to between two steps, not by the optimizer that dprec.private was given: "
            "evaluate the model, and write public values, within training.public()"
        )


def identity(module: nn.Module) -> str:
    """Return a hash of a model's trained parameters, by names and values: a copy has the same.

    >>> layer = nn.Linear(2, 2)
    >>> before = identity(layer)
    >>> with torch.no_grad():
    ...     _ = layer.bias.add_(1)
    >>> identity(layer) == before
    False
    """
    digest = hashlib.sha256()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            digest.update(name.encode())
            flat = parameter.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
