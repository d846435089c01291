"""Private training from your own script: a loader whose draws are accounted for, and a step.

Nothing here needs Lightning. The steps are those of `Privacy` (`dprec.privacy.steps`). This file adds what Lightning's
loop ensures: each batch gets one step, by the private gradient. The docstring of `dprec.privacy` lists the files of a
private run, that of `dprec` says where to add a model, a strategy or an operation.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, cast

import torch
from torch import nn
from torch.optim import Optimizer

from dprec.accounting.ledger import Ledger
from dprec.accounting.plan import refuse_change
from dprec.checks.bypass import refuse_model
from dprec.checks.loading import Loading
from dprec.checks.state import State, changed, held, quick_state
from dprec.contract import Drawable, Losses, Model, refuse_without
from dprec.distributed.ranks import group_of
from dprec.distributed.replicas import begin_alike
from dprec.errors import UserError, meant, refuse_other_kinds
from dprec.privacy.run import PrivateRun
from dprec.privacy.steps import PrivateSteps, TrainingTarget
from dprec.training.loaders import OfContent, private_loader, to_device
from dprec.training.refusals import refuse_asking, refuse_losses, refuse_optimizer
from dprec.training.step_order import FilledGradients, StepOrder, identity, refuse_written

_END = object()  # of a pass


def private(
    model: nn.Module,
    optimizer: Optimizer,
    data: Drawable,
    *,
    losses: Losses | None = None,
    epsilon: float | None = None,
    expected_batch: int | None = None,
    epochs: float | None = None,
    steps: int | None = None,
    loader: Mapping[str, Any] | None = None,
    continue_from: Mapping[str, Any] | None = None,
    **privacy: Any,
) -> Training:
    """Return the private training of a model: iterate over it, and step with each batch.

    Args:
        model: any module; its trained parameters are those that the optimizer updates.
        optimizer: any that takes one step for each gradient.
        data: a data set of which each item is all of one user, or a DataLoader of one, whose order is then dropped.
        losses: gives one loss per user of a batch, (B,), each from that user's row alone; `model.losses` by default.
        epsilon: the budget; iteration ends before a step that would pass it. None: ε is only reported.
        expected_batch: users in a step, on average: the loader's batch size by default.
        epochs: how often a user is drawn, on average. Give this or `steps`.
        steps: steps of the whole run.
        loader: options of `dprec.training.loaders.private_loader`: max_users, tokens, collate_fn, num_workers, ...
        continue_from: `promise()` of an earlier run of the same model: guarantees then cover both runs together.
        privacy: other arguments of `Privacy`: delta, noise_multiplier, clipping, max_norm, sparsity, verify, ...

    >>> import torch
    >>> from dprec import private
    >>> layer, users = torch.nn.Linear(3, 1), torch.randn(50, 3)
    >>> training = private(layer, torch.optim.SGD(layer.parameters(), lr=0.1), users,
    ...                    losses=lambda x: layer(x).squeeze(1).square(), epsilon=4, expected_batch=10, epochs=2)
    >>> for batch in training:
    ...     loss = training.step(batch)
    >>> training.steps, training.spent <= 4
    (10, True)
    """
    refuse_other_kinds(private, locals())
    for name in privacy.keys() - signature(PrivateRun).parameters.keys():
        raise TypeError(f"private() got an unexpected keyword argument '{name}': {meant(name, private, PrivateRun)}")
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is a {type(model).__name__}: give one torch.nn.Module")
    run = PrivateRun(epsilon=epsilon, **privacy)
    if continue_from is not None:
        run.continue_from(continue_from)
    made = private_loader(data, expected_batch, **(loader or {}))
    if losses is None:
        refuse_without(model, Model, "write it, or give losses, a function that does")
        losses = cast(Model, model).losses
    refuse_losses(losses)
    if (epochs is None) == (steps is None):
        raise UserError("how long to train: give exactly one of epochs and steps")
    batches: Any = made.batch_sampler
    if epochs is not None and not 0 < epochs < math.inf:
        raise UserError(f"epochs is {epochs}: give a finite number above 0")
    total = steps if steps is not None else max(1, batches.steps(epochs))
    if total < 1:
        raise UserError(f"steps is {steps}: give at least 1")
    return Training(run, TrainingTarget(model, OfContent(losses), optimizer), made, total)


class Training:
    """The private training of one model. Iterate over it; take one step with each batch.

    `step(batch)` is `backward(batch)`, which fills every `.grad` with the private gradient, and `optimizer.step()`.
    """

    def __init__(self, run: PrivateRun, trained: TrainingTarget, loader: Any, total: int) -> None:
        refuse_optimizer(trained.module, trained.optimizer)
        refuse_asking(trained.module)
        refuse_model(trained.module)
        self.run, self.trained, self.loader, self._total = run, trained, loader, total
        self._batches: Any = loader.batch_sampler
        run.plan(self._batches, total)
        self._steps: PrivateSteps | None = None  # from the first step on
        self._order = StepOrder(trained.optimizer, self._before_update, self._after_update)
        self._after = quick_state(held(trained.module))
        self._written: dict[str, None] = {}  # what was set within `public`
        self._model: str | None = None  # the identity of the model that a resumed run left

    def __len__(self) -> int:
        """How many steps the run takes in total, within its budget: a learning-rate schedule needs this."""
        run = self.run
        return min(self._total, run.steps + run.planned.steps_left(run.ledger, run.steps, self._total - run.steps))

    @property
    def steps(self) -> int:
        """Steps taken so far, those before a resume included."""
        return self.run.steps

    @property
    def spent(self) -> float:
        """ε of all events so far, including those of the runs that this one continues."""
        return self.run.spent

    @property
    def ledger(self) -> Ledger:
        return self.run.ledger

    @property
    def delta(self) -> float:
        return self.run.delta

    @property
    def sigma(self) -> float:
        """The noise multiplier."""
        return self.run.sigma

    def guarantee(self, assumptions: Sequence[str] = ()) -> str:
        """Return the sentence that states the guarantee so far; `assumptions` list what else is taken as public."""
        self._refuse_written()
        if not self._written:
            return self.run.guarantee(assumptions)
        units = f"{self.run.sampling.unit}s"
        first = list(assumptions) or [f"the number of {units} ({self.run.sampling.users})"]
        return self.run.guarantee([*first, f"what the script wrote to {', '.join(self._written)} between steps"])

    def promise(self, assumptions: Sequence[str] = ()) -> dict[str, Any]:
        """Return guarantee, ε and ledger, JSON-able: for `continue_from` of the next run of this model."""
        return {**self.run.promise(assumptions), "guarantee": self.guarantee(assumptions)}

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield the batches of all steps that are left."""
        for batches in self.passes():
            yield from batches

    def passes(self) -> Iterator[Iterator[list[Any]]]:
        """Yield the batches of each remaining pass over the data, so that a script can act once an epoch."""
        steps = self._begin()
        while self.run.steps < steps.last:
            yield self._pass(steps)

    def step(self, batch: list[Any]) -> float | None:
        """Take the step of this batch; return its mean loss, which is not private, None for an empty batch."""
        loss = self.backward(batch)
        self.trained.optimizer.step()
        return loss

    def backward(self, batch: list[Any]) -> float | None:
        """Fill `.grad` with the private gradient of this batch; the optimizer's step has to follow."""
        self._order.filling()
        steps = cast(PrivateSteps, self._steps)  # they have drawn the batch
        device = _device_of(self.trained.module).type
        self.run.coarse |= torch.is_autocast_enabled(device)
        loss = steps.gradient(batch)
        self._order.filled(FilledGradients(steps.parameters))
        return loss

    @contextmanager
    def public(self) -> Iterator[nn.Module]:
        """Yield the model in eval mode, with all owed noise added: wrap evaluation and saving in this.

        Values that are written to the model in here count as public, and the guarantee says so.
        """
        model = self.trained.module
        if self._order.phase in ("filled", "stepping"):
            raise UserError("training.public() stands between a gradient and its step: let optimizer.step() come first")
        self.run.strategies.settle()
        modes, before = {part: part.training for part in model.modules()}, self._look()
        model.eval()
        try:
            yield model
        finally:
            for part, mode in modes.items():
                part.training = mode
            now = self._look()
            self._written |= dict.fromkeys(changed(before, now))
            if not changed(self._after, before):
                self._after = now

    def state_dict(self) -> dict[str, Any]:
        """State for a checkpoint, beside model and optimizer."""
        self._order.refuse_lost()
        if self._order.phase != "idle":
            raise UserError("a checkpoint between a draw and its step would be incomplete: save after the step")
        self._refuse_written()
        run = self.run.state_dict()  # adds the noise that rows owe
        return {"run": run, "total": self._total, "model": identity(self.trained.module), "public": [*self._written]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume a run, whose model and optimizer you load, too; refuse the state of another run."""
        if self._steps is not None:
            raise UserError("a run that has begun cannot become another: load its state before the first step")
        if missing := {"run", "total", "model"} - state.keys():
            raise UserError(
                f"incomplete training state, without {', '.join(sorted(missing))}: load what state_dict() returned"
            )
        refuse_change({"steps": state["total"]}, {"steps": self._total})
        self.run.load_state_dict(state["run"])
        self._model, self._written = state["model"], dict.fromkeys(state.get("public", ()))

    def _begin(self) -> PrivateSteps:
        """Prepare for the first step, once: before it, `load_state_dict` may still resume a run."""
        if self._steps is None:
            module, losses = self.trained.module, self.trained.losses
            if self._model is not None and identity(module) != self._model:
                raise UserError(
                    "the model is not the one that the training state was saved with: load its state_dict, too, and "
                    "save both at the same step"
                )
            device = _device_of(module)
            loading = Loading(
                self.loader,
                self.run.sampling.unit,
                [module, losses],
                lambda batch: [to_device(part, device) for part in batch] if isinstance(batch, list) else batch,
            )
            ranks = group_of(device)
            if ranks.size == 1 and int(os.environ.get("WORLD_SIZE") or 1) > 1:
                raise UserError(
                    "WORLD_SIZE names several processes, which are not connected, so each would train a model of its "
                    "own: call torch.distributed.init_process_group() first, or unset it"
                )
            begin_alike(module, ranks)
            steps = PrivateSteps(self.run, self.trained, loading, self.run.steps, self._total, ranks)
            self._steps, self._loading = steps, loading
            self._after = self._look()
        return self._steps

    def _pass(self, steps: PrivateSteps) -> Iterator[list[Any]]:
        pending = self._order.pending_batch
        if self._order.phase == "drawn" and pending is not None:  # the loop ended before its step: the same draw again
            yield pending
        self._order.refuse_skipped()
        self._batches.step = self.run.steps  # a loader may have drawn ahead of what was trained on
        batches: Iterator[Any] | None = None
        while self.run.steps < steps.last:
            with self._order.drawing():
                batches = iter(self.loader) if batches is None else batches
                if (drawn := next(batches, _END)) is _END:
                    self._loading.refuse_left()
                    return
                batch = self._loading.transfer(drawn)
                self._refuse_written()  # the loader must not write to the model, either
                steps.draw(batch)
            self._order.drawn(batch)
            yield batch
            self._order.refuse_skipped()

    def _refuse_written(self) -> None:
        if self._steps is not None:
            refuse_written(self._after, self._look())

    def _look(self) -> State:
        return {**quick_state(held(self.trained.module, self._owing())), **self.run.strategies.table_versions}

    def _owing(self) -> list[int]:
        """Return the ids of tables whose rows get owed noise when they are read."""
        return [id(table) for table in self.run.strategies.tables_owing_noise.values()]

    def _before_update(self) -> None:
        cast(PrivateSteps, self._steps).before_update()

    def _after_update(self) -> None:
        cast(PrivateSteps, self._steps).after_update()
        self._after = self._look()


def _device_of(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
