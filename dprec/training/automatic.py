"""Any LightningModule: Lightning's automatic optimization, with the private gradient in place of the loss's.

Lightning calls the optimizer's step with a closure: `training_step`, zero_grad, `backward`, hooks. In a private run,
`training_step` charges the ledger and computes the noisy gradient from the module's losses for each user. `backward`
restores it after zero_grad. After the closure, only this gradient may change the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dprec.errors import NoRule, UserError
from dprec.gradients.uses.batches import before_filling
from dprec.lightning import beside
from dprec.privacy.steps import PrivateSteps
from dprec.training.loaders import WrappedBatch
from dprec.training.refusals import refuse_hooks, refuse_switches, switches_of
from dprec.training.step_order import FilledGradients, StepOrder

if TYPE_CHECKING:
    import pytorch_lightning as pl

STEP = "training_step"


class OwnLosses:
    """One loss per user of a micro-batch, by a module's own `losses` or `training_step`.

    The module's logs are kept once for each micro-batch of a step. Checks compute losses, too, but log nothing.
    """

    def __init__(self, module: pl.LightningModule) -> None:
        own: Any = getattr(module, "losses", None)
        self.by_losses = callable(own)  # then training_step, which would log the loss, is not called
        self._name = "losses" if self.by_losses else STEP
        step: Callable[..., Any] = own if self.by_losses else module.training_step
        self.__wrapped__ = getattr(step, "__func__", step)  # checks look at this function's global variables
        self._module, self._step = module, step
        takes = beside(module, "utilities.signature_utils.is_param_in_hook_signature")
        self._numbered = not self.by_losses and takes(step, "batch_idx", min_args=2)
        self._number = 0
        self._to_log: set[int] = set()

    def number(self, step: int) -> None:
        """Set the number of the next batch, for modules that take `batch_idx`."""
        self._number = step

    def log_once(self, batch: Sequence[Any]) -> None:
        """Log these micro-batches once, at their first call: checks compute the same losses again."""
        self._to_log = {id(part) for part in batch}

    def __call__(self, part: Any) -> Tensor:
        whole, called = before_filling(part), list[Any]()
        try:
            with logged_by(self._module, lambda *args, **options: called.append(args)):
                losses = self._each(self._asked(part))
        except NoRule:
            self._log(whole)  # users run again, each alone, but their logs would not be the batch's
            raise
        if called:
            self._log(whole)
        return losses

    def _log(self, whole: Any) -> None:
        """Log a micro-batch once, without the rows that fill it up, and outside the tape."""
        if id(whole) not in self._to_log:
            return
        self._to_log.remove(id(whole))
        log = partial(_weighted, self._module.log, len(whole))
        with torch.no_grad(), torch._C.DisableTorchFunction(), logged_by(self._module, log):
            self._asked(whole)

    def _asked(self, part: Any) -> Any:
        content = part.content if isinstance(part, WrappedBatch) else part
        return self._step(content, *((self._number,) if self._numbered else ()))

    def _each(self, returned: Any) -> Tensor:
        losses = returned.get("loss") if isinstance(returned, Mapping) else returned
        name = f"{type(self._module).__name__}.{self._name}"
        if not isinstance(losses, Tensor):
            what = "nothing" if losses is None else f"a {type(losses).__name__}"
            raise UserError(f"{name} returns {what}: return one loss for each user of the batch, a tensor (B,)")
        if losses.dim() == 0:
            raise UserError(
                f"{name} returns one number for a whole batch: return one loss for each user: drop .mean(), or give "
                "the loss function reduction='none'"
            )
        return losses


class AutomaticStep:
    """Replaces `training_step` and `backward` of Lightning's strategy; the module stays as it is."""

    def __init__(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        refuse_hooks(module)
        self._trainer, self._module = trainer, module
        self.losses = OwnLosses(module)
        self._steps: PrivateSteps | None = None
        self._order: StepOrder | None = None
        strategy: Any = trainer.strategy
        strategy.training_step, strategy.backward = self.training_step, self._backward

    def begin(self, steps: PrivateSteps) -> None:
        """Start to take the steps of this run."""
        self._steps = steps
        self._order = StepOrder(steps.trained.optimizer, steps.before_update, steps.after_update, by_closure=True)

    def leave(self) -> None:
        """Undo the replacement: Lightning calls the module itself again, and the optimizer takes any gradient."""
        for name in ("training_step", "backward"):
            vars(self._trainer.strategy).pop(name, None)
        if self._order is not None:
            self._order.end()

    def draw(self, batch: list[Any], batch_idx: int) -> None:
        """Accept the batch that was drawn for the coming step."""
        steps, order = self._begun()
        refuse_switches(switches_of(self._trainer))  # a callback may have changed one
        self.losses.number(batch_idx)
        steps.draw(batch)
        order.drawn(batch)

    def end(self) -> None:
        """Refuse a batch whose gradient the optimizer did not take."""
        self._begun()[1].refuse_skipped()

    def training_step(self, batch: list[Any], *_: Any) -> Tensor:
        """Charge the ledger and compute the noisy gradient; return the mean loss, not private, or 0."""
        steps, order = self._begun()
        order.filling()
        self.losses.log_once(batch)
        with self._trainer.precision_plugin.train_step_context():
            loss = steps.gradient(batch)
        if loss is not None and self.losses.by_losses:
            self._module.log("loss_not_private", loss, prog_bar=True, batch_size=1)
        order.filled(FilledGradients(steps.parameters))
        return torch.tensor(loss or 0.0, device=self._module.device)

    def _backward(self, loss: Tensor, *_: Any, **__: Any) -> Tensor:
        """Restore the gradient that Lightning's zero_grad removed, between the hooks of a backward pass."""
        plugin: Any = self._trainer.precision_plugin
        plugin.pre_backward(loss, self._module)
        self._begun()[1].put_back()
        plugin.post_backward(loss, self._module)
        return loss

    def _begun(self) -> tuple[PrivateSteps, StepOrder]:
        if self._steps is None or self._order is None:
            raise not_begun()
        return self._steps, self._order


def not_begun() -> UserError:
    return UserError(
        "a step would be taken without privacy, because Privacy.on_train_start did not run: leave out callbacks that "
        "train by themselves or remove callbacks from the trainer"
    )


@contextmanager
def logged_by(module: pl.LightningModule, log: Callable[..., None]) -> Iterator[None]:
    """Replace the module's `log` by this function within the context."""
    own = module.__dict__.get("log")
    module.__dict__["log"] = log
    try:
        yield
    finally:
        if own is None:
            del module.__dict__["log"]
        else:
            module.__dict__["log"] = own


def _weighted(log: Callable[..., None], users: int, *args: Any, **options: Any) -> None:
    """Log with this number of users as the batch size, which Lightning would otherwise guess from the batch."""
    if options.get("batch_size") is None:
        options["batch_size"] = users
    log(*args, **options)
