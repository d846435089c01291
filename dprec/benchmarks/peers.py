"""The systems that dprec is compared with: plain PyTorch, a loop over users, Opake, Opacus in both its modes, fastDP.

Opacus clips a tied table wrongly (tests/gradients/test_opacus.py), and fastDP is written for layers, as Opacus is: both
train two tables. Every system's step is checked before it is timed, so one that clips wrongly gets no number. All get
the same micro-batches as dprec, and each accumulates them in its own way.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from dprec.benchmarks.systems import CannotRun, DprecPlain, DprecPrivate, DprecUntied, PlainTransformer, System, adam
from dprec.data import SequenceBatch

MAX_NORM = 1.0


class Peer(System):
    """A plain model with the gradient of another library."""

    model: PlainTransformer

    def build(self) -> None:
        self.model = PlainTransformer(self.ids, self.length, self.dim, self.tied)
        self.optimizer: Any = adam(self.model)

    def step_with(self, sums: Sequence[Tensor]) -> None:
        """Add noise to the clipped sums, and step with their mean."""
        for total, parameter in zip(sums, self.model.parameters(), strict=True):
            if self.noise_multiplier:
                total += torch.normal(0.0, self.noise_multiplier * MAX_NORM, total.shape)
            parameter.grad = total.div_(self.users)
        self.optimizer.step()


class PlainPyTorch(Peer):
    name = "PyTorch non-private"
    private = False

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        self.optimizer.zero_grad()
        for part in batch:
            (self.model(part.history, part.targets).sum() / self.users).backward()
        self.optimizer.step()


class UserByUser(Peer):
    """The simplest private step that is right for any model: one backward pass for each user."""

    name = "PyTorch user by user"

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        parameters = list(self.model.parameters())
        sums = [torch.zeros_like(p) for p in parameters]
        for part in batch:
            for user in range(len(part)):
                one = part.select([user])
                gradients = torch.autograd.grad(self.model(one.history, one.targets).sum(), parameters)
                norm = torch.stack(torch._foreach_norm(gradients)).norm()
                torch._foreach_add_(sums, gradients, alpha=float(self.scale(norm)))
        self.step_with(sums)

    def scale(self, norm: Tensor) -> Tensor:
        return MAX_NORM / norm.clamp(min=1e-6)


class Wrapped(Peer):
    """A model that a library wraps, if it is installed."""

    library: str
    noise = ".*[Bb]ackward hook.*"  # a warning of the library

    def build(self) -> None:
        super().build()
        warnings.filterwarnings("ignore", message=self.noise)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self.wrap(import_module(self.library))
        except ImportError as error:
            raise CannotRun(f"not installed: {error}") from error

    @abstractmethod
    def wrap(self, library: Any) -> None:
        """Wrap the model in what this system measures."""

    def scale(self, norm: Tensor) -> Tensor:
        return (MAX_NORM / (norm + 1e-6)).clamp(max=1.0)


class OpacusHooks(Wrapped):
    name, library, tied = "Opacus hooks", "opacus", False

    def options(self) -> dict[str, Any]:
        return {"noise_multiplier": self.noise_multiplier, "max_grad_norm": MAX_NORM, "expected_batch_size": self.users}

    def wrap(self, library: Any) -> None:
        self.wrapped = library.GradSampleModule(self.model)
        self.optimizer = library.optimizers.DPOptimizer(self.optimizer, **self.options())

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        for part in batch:
            self.optimizer.signal_skip_step(part is not batch[-1])
            self.wrapped(part.history, part.targets).mean().backward()
            self.optimizer.step()
            gradients = [p.grad for p in self.model.parameters()]
            self.optimizer.zero_grad(set_to_none=True)
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient


class OpacusGhost(OpacusHooks):
    name = "Opacus ghost"

    def wrap(self, library: Any) -> None:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        self.wrapped = GradSampleModuleFastGradientClipping(self.model, max_grad_norm=MAX_NORM, use_ghost_clipping=True)
        self.optimizer = library.optimizers.DPOptimizerFastGradientClipping(self.optimizer, **self.options())
        self.loss = DPLossFastGradientClipping(self.wrapped, self.optimizer, _PerUser())

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        for part in batch:
            self.optimizer.signal_skip_step(part is not batch[-1])
            history = part.history.contiguous()  # its embedding takes a view of the ids
            self.loss(self.wrapped(history, part.targets)).backward()
            self.optimizer.step()


class _PerUser:
    """A loss function for models whose output is already the loss."""

    reduction = "mean"

    def __call__(self, losses: Tensor) -> Tensor:
        return losses


class FastDP(Wrapped):
    name, library, tied = "fastDP", "fastDP", False

    def wrap(self, library: Any) -> None:
        engine = library.PrivacyEngine(
            self.model, batch_size=self.users, sample_size=100 * self.users, epochs=1,
            noise_multiplier=self.noise_multiplier, max_grad_norm=MAX_NORM, loss_reduction="mean",
        )  # fmt: skip
        engine.attach(self.optimizer)

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        for part in batch:
            self.model(part.history, part.targets).mean().backward()
        self.optimizer.step()

    def scale(self, norm: Tensor) -> Tensor:
        return MAX_NORM / (norm + 1e-2)


class Opake(Wrapped):
    """One gradient per user by torch.func; users of a micro-batch at once, padding included, as it asks."""

    name, library, noise = "Opake", "opake.dpsgd.clipping", ".*performance drop.*batching rule.*"

    def wrap(self, library: Any) -> None:
        self.model.whole_rows = True
        self.clipped, self.state = library.clipped_grad(self._loss_of_one, clipping_norm=MAX_NORM, batch_argnums=(1, 2))

    def _loss_of_one(self, values: dict[str, Tensor], history: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = functional_call(self.model, values, (history[None], targets[None]))
        return losses.sum()

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        values = {name: p.detach() for name, p in self.model.named_parameters()}
        totals = [torch.zeros_like(value) for value in values.values()]
        for part in batch:
            clipped: Any
            clipped, self.state = self.clipped(values, part.history, part.targets, state=self.state)
            sums: dict[str, Tensor] = getattr(clipped, "pytree", clipped)
            torch._foreach_add_(totals, [sums[name] for name in values])
        self.step_with(totals)

    def scale(self, norm: Tensor) -> Tensor:
        return (MAX_NORM / norm).clamp(max=1.0)


COMPARED = (PlainPyTorch, DprecPlain, DprecPrivate, UserByUser, Opake, DprecUntied, OpacusHooks, OpacusGhost, FastDP)
SYSTEMS: dict[str, type[System]] = {kind.name: kind for kind in COMPARED}
