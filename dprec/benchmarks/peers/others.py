"""The systems that dprec is compared with: plain PyTorch, a loop over users, Opake, Opacus in both its modes, fastDP.

Opacus and fastDP clip a tied table wrongly (tests/gradients/test_opacus.py), so they train two tables.
They get the same micro-batches as dprec, and each accumulates them in its own way.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dprec.benchmarks.peers.systems import CannotRun, DprecPlain, DprecPrivate, DprecUntied, System, adam
from dprec.data import SequenceBatch

MAX_NORM = 1.0


class Peer(System):
    """A plain model with the gradient of another library."""

    def build(self) -> None:
        self.plain = self.architecture.plain(self.ids, self.length, self.dim, self.tied)
        self.optimizer: Any = adam(self.plain)

    @property
    def model(self) -> nn.Module:
        return self.plain


class PlainPyTorch(Peer):
    name = "PyTorch non-private"
    private = False

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        self.optimizer.zero_grad()
        for part in batch:
            (self.plain(part.history, part.targets).sum() / self.users).backward()
        self.optimizer.step()


class UserByUser(Peer):
    """The simplest private step that is right for any model: one backward pass for each user."""

    name = "PyTorch user by user"

    def build(self) -> None:
        super().build()
        self.sums = [torch.zeros_like(p) for p in self.plain.parameters()]

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        torch._foreach_zero_(self.sums)
        parameters = list(self.plain.parameters())
        for part in batch:
            for user in range(len(part)):
                one = part.select([user])
                gradients = torch.autograd.grad(self.plain(one.history, one.targets).sum(), parameters)
                norm = torch.stack(torch._foreach_norm(gradients)).norm()
                torch._foreach_add_(self.sums, gradients, alpha=float(self.scale(norm)))
        for total, parameter in zip(self.sums, parameters, strict=True):
            if self.noise_multiplier:
                total += torch.normal(0.0, self.noise_multiplier * MAX_NORM, total.shape)
            parameter.grad = total.div_(self.users)
        self.optimizer.step()

    def scale(self, norm: Tensor) -> Tensor:
        return MAX_NORM / norm.clamp(min=1e-6)


class Opacus(Peer):
    tied = False

    def build(self) -> None:
        super().build()
        warnings.filterwarnings("ignore", message=".*[Ff]ull backward hook.*")
        try:
            import opacus
        except ImportError as error:
            raise CannotRun(f"not installed: {error}") from error
        self.wrap(opacus)

    @abstractmethod
    def wrap(self, opacus: Any) -> None:
        """Wrap the model in the mode of Opacus that this system measures."""

    def scale(self, norm: Tensor) -> Tensor:
        return (MAX_NORM / (norm + 1e-6)).clamp(max=1.0)

    def _options(self) -> dict[str, Any]:
        return {"noise_multiplier": self.noise_multiplier, "max_grad_norm": MAX_NORM, "expected_batch_size": self.users}


class OpacusHooks(Opacus):
    name = "Opacus hooks"

    def wrap(self, opacus: Any) -> None:
        self.wrapped = opacus.GradSampleModule(self.plain)
        self.optimizer = opacus.optimizers.DPOptimizer(self.optimizer, **self._options())

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        for part in batch:
            self.optimizer.signal_skip_step(part is not batch[-1])
            self.wrapped(part.history, part.targets).mean().backward()
            self.optimizer.step()
            gradients = [p.grad for p in self.plain.parameters()]
            self.optimizer.zero_grad(set_to_none=True)
        for parameter, gradient in zip(self.plain.parameters(), gradients, strict=True):
            parameter.grad = gradient


class OpacusRecurrent(OpacusHooks):
    """A recurrent model with Opacus's layers, because its hooks do not work inside torch's recurrent layers."""

    name = "Opacus DPGRU, DPLSTM"

    def wrap(self, opacus: Any) -> None:
        own = getattr(opacus.layers, f"DP{type(self.plain.cell).__name__}")
        self.plain.cell = own(self.dim, self.dim, batch_first=True)
        self.optimizer = adam(self.plain)
        super().wrap(opacus)


class OpacusGhost(Opacus):
    name = "Opacus ghost"

    def wrap(self, opacus: Any) -> None:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        self.wrapped = GradSampleModuleFastGradientClipping(self.plain, max_grad_norm=MAX_NORM, use_ghost_clipping=True)
        self.optimizer = opacus.optimizers.DPOptimizerFastGradientClipping(self.optimizer, **self._options())
        self.loss = DPLossFastGradientClipping(self.wrapped, self.optimizer, _PerUser())

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        for part in batch:
            self.optimizer.signal_skip_step(part is not batch[-1])
            self.loss(self.wrapped(part.history, part.targets)).backward()
            self.optimizer.step()


class _PerUser:
    """A loss function for models whose output is already the loss."""

    reduction = "mean"

    def __call__(self, losses: Tensor) -> Tensor:
        return losses


class FastDP(Peer):
    name = "fastDP"
    tied = False

    def build(self) -> None:
        super().build()
        warnings.filterwarnings("ignore", message=".*non-full backward hook.*")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                from fastDP import PrivacyEngine

                engine = PrivacyEngine(
                    self.plain, batch_size=self.users, sample_size=100 * self.users, epochs=1,
                    noise_multiplier=self.noise_multiplier, max_grad_norm=MAX_NORM, loss_reduction="mean",
                )  # fmt: skip
        except ImportError as error:
            raise CannotRun(f"not installed: {error}") from error
        engine.attach(self.optimizer)

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        for part in batch:
            self.plain(part.history, part.targets).mean().backward()
        self.optimizer.step()

    def scale(self, norm: Tensor) -> Tensor:
        return MAX_NORM / (norm + 1e-2)


class Opake(Peer):
    """One gradient per user by torch.func; users of a micro-batch at once, padding included, as it asks."""

    name = "Opake"

    def build(self) -> None:
        super().build()
        warnings.filterwarnings("ignore", message=".*performance drop.*batching rule.*")
        try:
            from opake.dpsgd.clipping import clipped_grad
        except ImportError as error:
            raise CannotRun(f"not installed: {error}") from error
        self.plain.whole_rows = True
        self.clipped, self.state = clipped_grad(self._loss_of_one, clipping_norm=MAX_NORM, batch_argnums=(1, 2))

    def _loss_of_one(self, values: dict[str, Tensor], history: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = functional_call(self.plain, values, (history[None], targets[None]))
        return losses.sum()

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        values = {name: p.detach() for name, p in self.plain.named_parameters()}
        totals = self._clipped_sums(values, batch[0])
        for part in batch[1:]:
            torch._foreach_add_(list(totals.values()), list(self._clipped_sums(values, part).values()))
        for name, parameter in self.plain.named_parameters():
            total = totals[name]
            if self.noise_multiplier:
                total += torch.normal(0.0, self.noise_multiplier * MAX_NORM, total.shape)
            parameter.grad = total.div_(self.users)
        self.optimizer.step()

    def _clipped_sums(self, values: dict[str, Tensor], part: SequenceBatch) -> dict[str, Tensor]:
        clipped: Any
        clipped, self.state = self.clipped(values, part.history, part.targets, state=self.state)
        sums: dict[str, Tensor] = getattr(clipped, "pytree", clipped)
        return {name: sums[name] for name in values}

    def scale(self, norm: Tensor) -> Tensor:
        return (MAX_NORM / norm).clamp(max=1.0)


class OptimizerAlone(Peer):
    """What every system needs for any loss: a gradient, and Adam's moments and scratch."""

    name = "gradient and Adam alone"
    private = False

    def step(self, batch: Sequence[SequenceBatch]) -> None:
        self.optimizer.zero_grad()
        for parameter in self.plain.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()


SYSTEMS: dict[str, type[System]] = {
    kind.name: kind
    for kind in (
        PlainPyTorch,
        DprecPlain,
        DprecPrivate,
        UserByUser,
        Opake,
        DprecUntied,
        OpacusHooks,
        OpacusGhost,
        FastDP,
    )
}
RECURRENT: dict[str, type[System]] = {
    kind.name: kind for kind in (PlainPyTorch, DprecPlain, DprecPrivate, UserByUser, OpacusRecurrent)
}
MEASURED = SYSTEMS | RECURRENT | {OptimizerAlone.name: OptimizerAlone}
