"""The steps of a private run on one model, for Lightning's callback and for scripts: checks, ledger and gradient."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import nn
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam

from dprec.accounting.release import NoisySums
from dprec.accounting.terms import Terms
from dprec.checks.bypass import (
    refuse_gradient_hooks,
    refuse_model,
    refuse_other_gradients,
    refuse_shared_memory,
)
from dprec.checks.loading import Loading
from dprec.checks.same_draws import SameDraws
from dprec.checks.state import Unchanged, refuse_frozen
from dprec.contract import Losses, Users
from dprec.distributed.ranks import ALONE, Ranks, fingerprint, pieces
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.gradients.uses.arithmetic import compute_in_full, refuse_less
from dprec.gradients.uses.batches import batch_tensors
from dprec.gradients.uses.low_precision import LOW
from dprec.noise.step_noise import StepNoise
from dprec.privacy.cores import OneCore, cores_for
from dprec.privacy.private_gradient import PrivateGradient
from dprec.privacy.run import PrivateRun
from dprec.privacy.user_losses import UserLosses
from dprec.verify.drawn_users import DrawnUsers
from dprec.verify.self_check import SelfCheck

LOOKED_AT = 1024  # users whose rows all processes compare before the first step
AT_ONCE = 64  # of them in one batch


@dataclass(frozen=True)
class TrainingTarget:
    """What a run trains: a module, its losses (one per user of a micro-batch), and the module's optimizer."""

    module: nn.Module
    losses: Losses
    optimizer: Optimizer


class UsersOfAPeriod:
    """The users with these numbers, numbered again from 0."""

    def __init__(self, everybody: Users, numbers: range) -> None:
        self._everybody, self._numbers = everybody, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def of(self, users: Sequence[int]) -> list[Any]:
        return self._everybody.of([self._numbers[user] for user in users])


class PrivateSteps:
    """Takes the steps of a run: each is `draw`, then `gradient`, then the optimizer's step.

    Hooks (`dprec.training.step_order`) call `before_update` and `after_update` within the optimizer's step, right
    before and right after it changes the weights.

    Of the run's `total` steps, `taken` were taken before it was resumed. `ranks` are the processes that train
    together.
    """

    def __init__(
        self,
        run: PrivateRun,
        trained: TrainingTarget,
        loading: Loading,
        taken: int,
        total: int,
        ranks: Ranks = ALONE,
    ) -> None:
        refuse_model(trained.module)
        refuse_gradient_hooks(trained.module)
        compute_in_full()
        self.run, self.trained, self._loading = run, trained, loading
        self._losses = UserLosses(trained.module, trained.losses)
        module, strategies, sampling = trained.module, run.strategies, run.sampling
        if not run.noise.seeded:
            loading.forget_seeds()
        self._ranks = ranks
        run.noise.join(ranks)
        loading.deal(ranks)
        loading.of([0])
        loading.of([])  # a draw may be empty: fail now if no batch can be made of it
        allowed = run.start(taken, total)
        parameters = self.parameters = trained_parameters(module)  # those of the last gradient
        shapes = [(name, tuple(p.shape)) for name, p in parameters.items()]
        ranks.refuse_different(
            "differ in settings, data or model: start all with the same recipe, data and seed",
            run.planned.settings(),
            (run.clipping, len(loading)),
            (taken, total, run.steps),
            shapes,
            [rows for _, rows in getattr(module, "shared_rows", tuple)()],
        )
        ranks.refuse_different(
            "have different data, in another order or drawn anew at each reading, so a user could count in several: "
            "let each read the same, by torch's, NumPy's or Python's global generators, without a seed of its own",
            *self._some_of_data(),
        )
        run.coarse |= any(p.dtype in LOW for p in module.parameters())
        step_noise = StepNoise(run.noise, run.sigma, sampling.expected_batch)
        strategies.begin(module, parameters, step_noise, run.clipping.max_norm)
        refuse_shared_memory(module, strategies.tables_owing_noise)
        self._owing: set[int] = set()  # the ids of tables whose rows owe noise and get it when read
        self._sums = NoisySums(run.planned.releases, run.noise, run.ledger.record)
        self._period: int | None = None  # of the last step that this process took
        if run.steps == 0:
            self._learn(None, loading)
        strategies.guard(module, trained.optimizer, run.steps)
        self._owing.update(map(id, strategies.tables_owing_noise.values()))
        self._drawn = DrawnUsers(loading.of, loading.streams)
        self.check = SelfCheck(run.verify, module, parameters, run.clipping, strategies, self._drawn)
        cores = OneCore() if ranks.size > 1 or strategies.in_order else cores_for(module)
        padding = padding_rows(module)
        self._gradient = PrivateGradient(run.clipping, step_noise, padding, strategies, self.check, cores)
        most = run.clipping.max_norm / step_noise.expected_batch  # that one user adds to the gradient
        std = step_noise.nominal_std(most, strategies.gradient_noise_factor)
        self.last = run.steps + allowed  # the step after which the budget is spent
        self.terms = Terms(self._sums, std, self.last)
        self._names = parameters.keys()
        self._modes: list[bool] = []  # which parts were in training mode when the model was last checked

    def _some_of_data(self) -> list[int]:
        """Return fingerprints of randomly chosen users' rows, for processes to compare their data."""
        if self._ranks.size == 1:
            return []
        count = len(self._loading)
        picked = np.random.default_rng(self._ranks.shared(secrets.randbits(128)))
        some = np.sort(picked.choice(count, min(count, LOOKED_AT), replace=False)).tolist()
        together = min(AT_ONCE, self.run.sampling.expected_batch)
        groups = [some[start : start + together] for start in range(0, len(some), together)]
        return [self._data_fingerprint(users) for users in groups]

    def _data_fingerprint(self, users: Sequence[int]) -> int:
        with SameDraws(streams=self._loading.streams):
            made = [row for part in self._loading.of(users) for row in batch_tensors(part)]
        return fingerprint([pieces(row) for row in made])

    def draw(self, batch: Any) -> None:
        """Accept the next batch; refuse it if it is not the sampler's draw."""
        self._refuse_hooks_and_low_precision()
        self.run.sampling.refuse_changed(self._loading.sampler)
        drawn: Sequence[int] = self._loading.drawn(self.run.steps)
        self._loading.check(batch, drawn)
        self._drawn.begin(drawn)
        self._refuse_in_other_modes()
        period, module = self.run.sampling.period_of(self.run.steps), self.trained.module
        if period not in (None, self._period):  # whose first batch comes next
            self._period = period
            self._learn(period, UsersOfAPeriod(self._loading, self.run.sampling.periods[period].numbers))
        self._loading.hold(batch)
        refuse_frozen(self._names, trained_parameters(module).keys())
        self._unchanged = Unchanged(module, self._owing)
        if not self.run.noise.seeded:
            self._loading.streams.reseed()

    def _learn(self, period: int | None, users: Users) -> None:
        """Let strategies look at all users before the first step, or at a period's users before its first."""
        before, strategies = Unchanged(self.trained.module, self._owing), self.run.strategies
        periods = len(self.run.sampling.periods)
        strategies.learn(period, self._losses, trained_parameters(self.trained.module), users, self._sums, periods)
        before.refuse()

    def _refuse_in_other_modes(self) -> None:
        """Check the model again, as before the first step, if a part went from evaluation to training mode or back.

        A layer that keeps statistics of users, such as a running mean, may do so in training mode only.
        """
        modes = [part.training for part in self.trained.module.modules()]
        if modes != self._modes:
            self._modes = modes
            refuse_model(self.trained.module)
            self.check.restart()

    def gradient(self, batch: Sequence[Any]) -> float | None:
        """Fill `.grad` with the private gradient of the batch that was drawn; return its mean loss, not private."""
        self._loading.refuse_other(batch)
        self.parameters = trained_parameters(self.trained.module)
        loss = self._gradient(self.parameters, self._losses, batch, self._batch_of_one, self.run.charge_step)
        self.run.uneven |= self.check.uneven
        return loss

    def _batch_of_one(self, part: Any, place: int) -> Any:
        return self._loading.batch_of_one(part, place, self._drawn.users)

    def before_update(self) -> None:
        """Update tables that have a noise schedule; refuse any gradient but the private one."""
        optimizer = self.trained.optimizer
        self._refuse_hooks_and_low_precision()
        refuse_other_gradients(self.trained.module, optimizer, self._gradient.filled)
        self._unchanged.refuse()
        self.check.stepping(optimizer)
        self.run.strategies.update(optimizer)
        self.check.stepped()
        self._loading.empty_batch()
        if self.run.steps >= self.last:
            self.run.strategies.settle()  # adds the noise that rows owe: the model is complete
            self.end()
        _densify(optimizer, trained_parameters(self.trained.module).values())

    def end(self) -> None:
        """End the forked workers, after the last step or when the run stops."""
        self._gradient.cores.close()

    def after_update(self) -> None:
        """Stop all processes unless their models are the same, except for tables whose rows owe noise."""
        if self._ranks.size > 1:
            looked = [p for p in trained_parameters(self.trained.module).values() if id(p) not in self._owing]
            self._ranks.refuse_different(
                f"have different models after step {self.run.steps}: train on one kind of machine, and let losses, "
                "hooks and callbacks do the same in each",
                *map(pieces, looked),
            )

    def _refuse_hooks_and_low_precision(self) -> None:
        """Refuse hooks that change gradients, and settings of torch in which norms are not exact enough."""
        refuse_less()
        refuse_gradient_hooks(self.trained.module)


def _densify(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Make sparse gradients dense for optimizers that take no sparse ones."""
    known = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and gradient.is_sparse and not _takes_rows(optimizer, known[id(parameter)]):
            parameter.grad = gradient.to_dense()


def _takes_rows(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    if hasattr(optimizer, "step_rows") or isinstance(optimizer, SparseAdam):
        return True
    decays = bool(group.get("weight_decay"))
    if type(optimizer) is SGD:
        return not decays and not group["momentum"] and not group["maximize"]
    return type(optimizer) is Adagrad and not decays and not group["maximize"]
