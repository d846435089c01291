"""The order of a script's steps: a batch is drawn, its gradient is made, the optimizer steps by it, then the next.

The optimizer tells of its own steps by hooks. Whoever goes past this order is told so in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from torch.optim import Optimizer

from dprec.errors import UserError
from dprec.training.between import PrivateGradients

Phase = Literal["idle", "lost", "drawn", "filled", "stepping"]


class StepOrder:
    """Where a script stands in its step. `release` is called before the optimizer moves anything, `moved` after."""

    def __init__(self, optimizer: Optimizer, release: Callable[[], None], moved: Callable[[], None]) -> None:
        self.phase: Phase = "idle"
        self.left: list[Any] | None = None  # the batch last drawn
        self._lost = ""  # the error that ended a draw
        self._optimizer: Any = optimizer
        self._release, self._moved = release, moved
        self._gradients: PrivateGradients | None = None
        self._depth = 0  # of optimizers' steps within steps
        for handle in getattr(optimizer, "_dprec_hooks", ()):  # a training before this one, which is over
            handle.remove()
        self._hooks = (
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        )
        vars(optimizer)["_dprec_hooks"] = self._hooks

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """While a batch is drawn: an error of the data, or of a check, may tell who was in it, and so may Ctrl-C."""
        try:
            yield
        except BaseException as error:
            self.phase, self._lost = "lost", str(error).partition("\n")[0] or type(error).__name__
            raise

    def drawn(self, batch: list[Any]) -> None:
        """Hear that a batch is drawn."""
        self.phase, self.left = "drawn", batch

    def filling(self) -> None:
        """Hear that a gradient is asked for."""
        if self.phase == "filled":
            raise UserError("training.backward(batch) was called twice for a batch: let optimizer.step() follow it")
        self.refuse_lost()
        if self.phase == "idle":
            raise UserError(
                "no batch is drawn that a step could be taken with: write `for batch in training:` around it"
            )
        # Look last at what the optimizer steps by, and first at where it stepped to.
        self._optimizer._optimizer_step_pre_hooks.move_to_end(self._hooks[0].id)
        self._optimizer._optimizer_step_post_hooks.move_to_end(self._hooks[1].id, last=False)

    def filled(self, gradients: PrivateGradients) -> None:
        """Hear that the gradient is made."""
        self._gradients, self.phase = gradients, "filled"

    def refuse_skipped(self) -> None:
        """Refuse to go on after a batch whose step was not taken, or not to its end."""
        if self.phase == "drawn":
            raise UserError(
                "a batch was drawn and no step was taken with it: skipping one tells who is in it; call "
                "training.step(batch) for each batch, also for an empty one"
            )
        if self.phase == "filled":
            raise UserError(
                "training.backward(batch) was not followed by optimizer.step(): a step is one batch; for larger ones "
                "raise expected_batch, and bound memory by max_users"
            )
        self.refuse_lost()
        if self.phase == "stepping":
            raise UserError(
                "optimizer.step() was cut short by an error, so that the model may be half moved: go on from what was "
                "saved before"
            )

    def refuse_lost(self) -> None:
        """Refuse to go on after a draw that an error ended."""
        if self.phase == "lost":
            raise UserError(
                f"an error ended a draw ({self._lost}), and going on with another tells who was in it: mend it, such "
                "as by max_users where memory ends, and begin anew or go on from what was saved before"
            )

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth += 1
        if self._depth > 1:  # an optimizer whose step is another's and more
            return
        try:
            if next(reversed(self._optimizer._optimizer_step_pre_hooks)) != self._hooks[0].id:
                raise UserError("a step hook came after training.backward(batch): register it before")
            if any(callable(each) for each in (*args[1:], *kwargs.values())):
                raise UserError("optimizer.step(closure) asks for a loss of its own: call it without")
            if self.phase != "filled" or self._gradients is None:
                raise UserError(
                    "optimizer.step() without a private gradient: call training.step(batch), or "
                    "training.backward(batch) before it, once for each batch, and no loss.backward()"
                )
            self._gradients.refuse_changed()
            self._release()
        except BaseException:
            self._depth = 0
            raise
        self.phase = "stepping"

    def _after_step(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.phase, self._gradients = "idle", None
            self._moved()
