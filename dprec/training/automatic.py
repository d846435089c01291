"""Any LightningModule: Lightning's automatic optimization, with the private gradient where the loss's would be.

Lightning's loop is `training_step`, zero_grad, `backward`, hooks, gradient clipping, and the optimizer's step. While a
private run lasts, the module has other methods for these: `training_step` makes the private gradient from what the
module's own returns for each user, `backward` puts it back, and the place of gradient clipping, which comes last,
refuses what was changed and lets the optimizer go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dprec.checks.switches import refuse_switches, switches_of
from dprec.errors import UserError
from dprec.gradients.parameters import trained_parameters
from dprec.gradients.uses.batches import before_filling
from dprec.lightning import beside
from dprec.privacy.steps import PrivateSteps
from dprec.training.lightning_checks import refuse_hooks, refuse_several
from dprec.training.micro_batches import Rows
from dprec.training.script_checks import densify
from dprec.training.step_order import PrivateGradients

if TYPE_CHECKING:
    import pytorch_lightning as pl

STEP = "training_step"
IN_ITS_PLACE = (STEP, "configure_optimizers", "backward", "configure_gradient_clipping")


class OwnLosses:
    """One loss per user of a micro-batch, by a module's own `losses` or `training_step`.

    What it logs is logged once for each micro-batch of a step, and never for the checks, which ask for losses, too.
    """

    def __init__(self, module: pl.LightningModule) -> None:
        own: Any = getattr(module, "losses", None)
        self.takes_no_step = callable(own)  # so that training_step, which would log the loss, is not called
        self._name = "losses" if callable(own) else STEP
        step: Callable[..., Any] = own if callable(own) else module.training_step
        self.__wrapped__ = getattr(step, "__func__", step)  # whose global variables are looked at
        self._module, self._step = module, step
        takes = beside(module, "utilities.signature_utils.is_param_in_hook_signature")
        self._numbered = self._name == STEP and takes(step, "batch_idx", min_args=2)
        self._number = 0
        self._to_log: set[int] = set()

    def number(self, step: int) -> None:
        """Say which batch of the pass is next."""
        self._number = step

    def log_once(self, batch: Sequence[Any]) -> None:
        """Let these micro-batches be logged: the first time, since checks ask for their losses again."""
        self._to_log = {id(part) for part in batch}

    def __call__(self, part: Any) -> Tensor:
        whole, called = before_filling(part), list[Any]()
        with logged_by(self._module, lambda *args, **options: called.append(args)):
            losses = self._each(self._asked(part))
        if id(whole) in self._to_log:
            self._to_log.remove(id(whole))
            if called:  # of the users alone, without the rows that fill their batch up, and unseen by the tape
                log = partial(_weighted, self._module.log, len(whole))
                with torch.no_grad(), torch._C.DisableTorchFunction(), logged_by(self._module, log):
                    self._asked(whole)
        return losses

    def _asked(self, part: Any) -> Any:
        content = part.content if isinstance(part, Rows) else part
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
    """Stands in a module for its `training_step` and for what Lightning does with its loss."""

    def __init__(self, module: pl.LightningModule) -> None:
        refuse_hooks(module)
        self._module = module
        self.losses = OwnLosses(module)
        self._own_optimizers = module.configure_optimizers
        self._steps: PrivateSteps | None = None
        self._gradients: PrivateGradients | None = None
        for name in IN_ITS_PLACE:
            module.__dict__[name] = getattr(self, name)

    def __deepcopy__(self, memo: Any) -> AutomaticStep:
        return self  # averaged copies of the module do not train

    def begin(self, steps: PrivateSteps) -> None:
        self._steps = steps

    def leave(self) -> None:
        """Give the module its own methods back."""
        for name in IN_ITS_PLACE:
            self._module.__dict__.pop(name, None)

    def coming(self, batch_idx: int) -> None:
        """Hear that a batch is drawn."""
        refuse_switches(switches_of(self._module.trainer))  # a callback may have changed one
        self.losses.number(batch_idx)

    def configure_optimizers(self) -> Any:
        made: Any = self._own_optimizers()
        refuse_several(made)
        return made

    def training_step(self, batch: list[Any], batch_idx: int = 0) -> Tensor:
        """Make the private gradient; return the mean loss of the batch's users, which is not private, 0 of nobody."""
        if self._steps is None:
            raise UserError(
                "a step would be taken without privacy, since Privacy was not told that training begins: leave out "
                "callbacks that train by themselves, and let none take others out of the trainer"
            )
        parameters = trained_parameters(self._module)
        self.losses.log_once(batch)
        loss = self._steps.gradient(parameters, self.losses, batch)
        if loss is not None and self.losses.takes_no_step:
            self._module.log("loss_not_private", loss, prog_bar=True, batch_size=1)
        self._gradients = PrivateGradients(parameters)
        return torch.tensor(loss or 0.0, device=self._module.device)

    def backward(self, *_: Any, **__: Any) -> None:
        if self._gradients is not None:
            self._gradients.put_back()

    def configure_gradient_clipping(self, optimizer: Optimizer, *_: Any, **__: Any) -> None:
        """Let the optimizer step by the private gradient. Nothing of Lightning's comes between this and its step."""
        if self._gradients is None or self._steps is None:
            raise UserError(
                f"{type(self._module).__name__}: the optimizer would step without a private gradient: let Lightning "
                "call training_step and the optimizer, once for each batch"
            )
        self._gradients.refuse_changed("between training_step and the optimizer's step")
        self._gradients = None
        self._steps.release(optimizer)
        densify(optimizer, trained_parameters(self._module).values())

    def refuse_unstepped(self) -> None:
        """Refuse a batch whose gradient the optimizer did not take."""
        if self._gradients is not None:
            raise UserError(
                f"{type(self._module).__name__}: the optimizer did not step with a batch's private gradient: let "
                "optimizer_step call optimizer.step(closure=optimizer_closure) for each batch"
            )


@contextmanager
def logged_by(module: pl.LightningModule, log: Callable[..., None]) -> Iterator[None]:
    """Let the module log by this."""
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
    """Log a mean over so many users, which Lightning would look for in the batch."""
    if options.get("batch_size") is None:
        options["batch_size"] = users
    log(*args, **options)
