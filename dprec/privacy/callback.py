"""The Lightning callback that makes a model's training private, and says what that guarantees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import pytorch_lightning as pl
import torch

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.composition import COARSE
from dprec.accounting.ledger import Event, Ledger
from dprec.accounting.partition import Partition
from dprec.accounting.plan import Plan
from dprec.accounting.release import NoisySums, Release
from dprec.accounting.sampling import Sampler, Sampling
from dprec.accounting.terms import refuse_change, refuse_part, refuse_unrecorded, terms
from dprec.checks.bypass import (
    refuse_averaging,
    refuse_model,
    refuse_other_gradients,
    refuse_overtaking,
    refuse_own_step,
    refuse_tuners,
)
from dprec.checks.loading import Loading
from dprec.checks.probe import Probe
from dprec.checks.state import Unchanged
from dprec.checks.switches import refuse_switches, switches_of
from dprec.errors import UserError
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.noise.gaussian import GaussianNoise, most_users
from dprec.privacy.descent import NoDescent, PrivateDescent
from dprec.privacy.guarantee import guarantee
from dprec.privacy.periods import Periods
from dprec.privacy.saved import forget_evaluation
from dprec.privacy.step import PrivateGradient
from dprec.sparsity.rows.row_rules import RowRules
from dprec.sparsity.rows.strategy import Strategy
from dprec.verify.drawn import Drawn
from dprec.verify.self_check import SelfCheck


class Privacy(pl.Callback):
    """Trains whatever model it is given with differential privacy per user, or whatever else the data draws as one.

    Args:
        epsilon: the budget; training stops before a step that would pass it. None: ε is only reported.
        delta: None means 1 / users.
        noise_multiplier: σ, noise per clipping norm. None: the smallest that keeps the whole run in the budget.
        clipping: auto-v (every user's gradient scaled to `max_norm`), auto-s or flat.
        max_norm: C, the most one user can add to the sum of gradients.
        noise_seed: repeatable noise for tests. Whoever knows it can remove the noise: the run is not private.
        verify: the share of the time in which a run checks itself (`dprec.verify.self_check`); 0 for no checks.
        sparsity: what rules over the rows of embedding tables, in order; dense noise by default (`dprec.sparsity`).
    """

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        clipping: Literal["auto-v", "auto-s", "flat"] = "auto-v",
        max_norm: float = 1.0,
        noise_seed: int | None = None,
        sparsity: Strategy | list[Strategy] | None = None,
        verify: float = 0.02,
    ) -> None:
        super().__init__()
        self.rules = RowRules([sparsity] if isinstance(sparsity, Strategy) else sparsity or [])
        if epsilon is None and noise_multiplier is None:
            raise UserError(
                "privacy has neither epsilon nor noise_multiplier: give one, or leave the privacy block out"
            )
        if noise_multiplier is not None and not 0 <= noise_multiplier < float("inf"):
            raise UserError(f"privacy.noise_multiplier is {noise_multiplier}: give a finite number from 0 up")
        if epsilon is not None and self.rules.broken:
            raise UserError(f"privacy.epsilon is {epsilon:g}, but {self.rules.broken}: give noise_multiplier alone")
        if not 0 <= verify <= 1:
            raise UserError(f"privacy.verify is {verify}: give a share of the time from 0 to 1")
        # Made here for what it says about a number that makes no sense.
        PrivacyBudget(1.0 if epsilon is None else epsilon, 0.5 if delta is None else delta)
        self.epsilon = epsilon
        self.clipping = Clipping(clipping, max_norm)
        self.noise = GaussianNoise(noise_seed)
        self.ledger = Ledger()
        self.verify = verify
        self.steps = 0
        self._given = {
            "epsilon": epsilon,
            "delta": delta,
            "noise_multiplier": noise_multiplier,
            **asdict(self.clipping),
            "sparsity": self.rules.settings(),
        }
        self._bought: tuple[Event, ...] = ()  # before the plan was made
        self._plan: Plan | None = None
        self._allowed = 0
        self._resumed: dict[str, Any] | None = None
        self.coarse = False  # whether gradients are bfloat16 somewhere, so that no bound on their rounding holds
        self._first = True  # no step was taken in this process yet

    @property
    def planned(self) -> Plan:
        """What the run will spend."""
        if self._plan is None:
            raise UserError("the run is not planned yet, so δ and the noise are not known: call plan() first")
        return self._plan

    @property
    def delta(self) -> float:
        return self.planned.delta

    @property
    def sigma(self) -> float:
        """The noise multiplier in force."""
        return self.planned.sigma

    @property
    def sampling(self) -> Sampling:
        return self.planned.sampling

    @property
    def spent(self) -> float:
        """ε of everything recorded so far, the figure that is reported."""
        return math.inf if self.rules.broken else self.ledger.epsilon(self.delta)

    @property
    def spent_at_most(self) -> float:
        """A slightly larger ε that costs ten times less: for progress."""
        return math.inf if self.rules.broken else self.ledger.epsilon(self.delta, COARSE)

    @property
    def repeatable(self) -> bool:
        """Whether somebody who knows a seed can redraw the noise or the batches, so that nothing is private."""
        return self.noise.seeded or self.sampling.seeded

    def partition(self, users: int, share: float) -> Partition:
        """Return the choice of ids, among those of so many users, that a share of the budget pays for."""
        if self.epsilon is None:
            raise UserError("a private catalogue is paid for with a share of privacy.epsilon, so give privacy.epsilon")
        delta = self._given["delta"]
        return Partition.of(PrivacyBudget(self.epsilon, 1 / max(2, users) if delta is None else delta), share)

    def begin_with(self, events: Sequence[Event], on_record: bool = False) -> None:
        """Enter what comes before the plan is made: it is recorded now, unless a checkpoint's ledger has it."""
        self._bought = tuple(events)
        for event in () if on_record else events:
            self.ledger.record(event)

    def plan(self, sampler: Sampler | None, steps: int, releases: Sequence[Release] = ()) -> None:
        """Fix δ and σ for a run of these releases and this many steps; asking again for the same changes nothing."""
        sampling, old = Sampling.of(sampler), self._plan
        releases = (*self.rules.releases(len(sampling.periods)), *releases)
        if old is not None and (old.sampling, tuple(old.releases)) == (sampling, tuple(releases)):
            return
        delta, sigma = self._given["delta"], self._given["noise_multiplier"]
        if old is not None and self.steps:  # noise that was drawn is not planned anew
            delta, sigma = old.delta, old.sigma
        self._plan = Plan.of(sampling, steps, self.epsilon, delta, sigma, releases, self._bought)

    def epsilon_after(self, steps: int) -> float:
        """ε of a whole run of this many steps, as planned, with what the model releases before them."""
        return math.inf if self.rules.broken else self.planned.epsilon_after(steps)

    def guarantee(self, assumptions: Sequence[str] = ()) -> str:
        """Return the one sentence that says what holds, under which assumptions, and what is not covered."""
        if self.rules.broken:
            return f"not private: {self.rules.broken}"
        told = self.rules.phrase(self.planned.sigma)
        return guarantee(
            self.planned, self.ledger, self.clipping, self.steps, self.repeatable, assumptions, told, self.coarse
        )

    def setup(self, trainer: pl.Trainer, pl_module: Any, stage: str) -> None:
        """Stand before all other callbacks: none sees a batch before this one holds it, and none trains before."""
        if stage == "fit":
            refuse_tuners(trainer)
            if hasattr(pl_module, "descent"):
                pl_module.descent = NoDescent()
            others = [each for each in trainer.callbacks if each is not self]  # type: ignore[attr-defined]
            trainer.callbacks = [self, *others]  # type: ignore[attr-defined]

    def on_train_start(self, trainer: pl.Trainer, pl_module: Any) -> None:
        refuse_switches(switches_of(trainer))
        if self.rules.defer:
            refuse_averaging(trainer)
        refuse_model(pl_module)
        torch.set_float32_matmul_precision("highest")  # a norm in TF32 would not bound the sum
        total: int = pl_module.total_steps
        releases = tuple(getattr(pl_module, "releases", ()))
        self.plan(getattr(trainer.train_dataloader, "batch_sampler", None), total, releases)
        self._continue(trainer)
        self._loading = Loading(trainer, self.sampling.unit)
        if not self.noise.seeded:
            self._loading.forget_seeds()
        self._loading.of([0])
        self._loading.of([])  # a draw may be empty: say now where that cannot be
        self._probe, self._first, self._periods = Probe(self._loading.streams), True, Periods(self.sampling, self.rules)
        self._allowed = self.planned.steps_left(self.ledger, self.steps, total - self.steps)
        if self._allowed == 0 and self.steps == 0:
            raise self.planned.too_dear()
        sums = NoisySums(self.planned.releases, self.noise, self.ledger.record)
        trained = trained_parameters(pl_module)
        self.coarse |= "bf16" in str(trainer.precision) or any(p.dtype.itemsize < 4 for p in trained.values())
        sigma, unit = self.sigma * self.rules.gradient_noise, self.clipping.max_norm / self.sampling.expected_batch
        most = most_users(self.sampling.expected_batch)
        self.rules.begin(pl_module, trained, self.sigma, unit, self.noise, most)
        if self.steps == 0:
            self.rules.prepare(pl_module, trained, self._loading, sums, len(self.sampling.periods))
        self.rules.guard(pl_module, pl_module.optimizers(use_pl_optimizer=False), self.steps)
        self._drawn = Drawn(self._loading.of, self._loading.streams)
        gradient = PrivateGradient(
            self.clipping,
            sigma,
            self.sampling.expected_batch,
            self.noise,
            padding_rows(pl_module),
            self._record,
            self.rules,
            self._loading.refuse_other,
            most,
            self._self_check(pl_module, trained),
        )
        self._descent = pl_module.descent = PrivateDescent(gradient, sums, sigma * unit, self.steps + self._allowed)
        owing = [name for name in trained if self.rules.defer and self.rules.over(name)]
        self._unchanged, self._owing = Unchanged(pl_module, owing), [id(trained[name]) for name in owing]

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        refuse_overtaking(trainer, self)
        self._before = self.steps
        drawn = self._loading.drawn(self.steps)
        self._loading.check(batch, drawn)
        self._drawn.users = drawn
        self._probe(pl_module, self._loading.of, drawn, self._owing)
        self._periods.enter(self.steps, self._loading, pl_module, self._descent.sums)
        self._loading.hold(batch)
        self._unchanged.begin()
        if not self.noise.seeded:
            self._loading.streams.reseed()

    def on_before_optimizer_step(self, trainer: pl.Trainer, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        """Let no parameter move by a gradient that was not made private."""
        refuse_own_step(pl_module, self.steps - self._before)
        refuse_other_gradients(pl_module, optimizer, self._descent.gradient.filled)
        self._unchanged.end()
        self.rules.update(optimizer)
        self._loading.release()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        refuse_own_step(pl_module, self.steps - self._before)

    def on_validation_start(self, *_: Any) -> None:
        self.rules.settle()

    def on_train_end(self, *_: Any) -> None:
        self.rules.settle()

    def on_exception(self, *_: Any) -> None:
        self.rules.settle()

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        forget_evaluation(checkpoint)

    def state_dict(self) -> dict[str, Any]:
        return {
            "ledger": self.ledger.state_dict(),
            "steps": self.steps,
            "coarse": self.coarse,
            "settings": terms(self._given, self.planned, self.noise.seeded),
            "sparsity": self.rules.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what a checkpoint's run has spent, if this run may continue it."""
        refuse_part(state_dict)
        old = state_dict["settings"]
        refuse_change(old, {**self._given, "noise_seeded": self.noise.seeded})
        self._resumed = old
        self.rules.load_state_dict(state_dict.get("sparsity", []))
        self.ledger.load_state_dict(state_dict["ledger"])
        self.steps = int(state_dict["steps"])
        self.coarse = bool(state_dict.get("coarse", False))
        sampling = Sampling.from_settings(old) if self._plan is None else self._plan.sampling
        releases = {} if self._plan is None else self._plan.releases
        self._plan = Plan(sampling, self.epsilon, old["delta"], old["sigma"], releases, self._bought)
        refuse_unrecorded(self.steps, self.ledger, sampling)

    def _self_check(self, module: Any, trained: dict[str, torch.nn.Parameter]) -> SelfCheck | None:
        if not self.verify:
            return None
        return SelfCheck(self.verify, module, trained, self.clipping, self.rules, self._drawn)

    def _continue(self, trainer: pl.Trainer) -> None:
        """Check that what was taken over is the beginning of this very run."""
        if self._resumed is None and trainer.global_step:
            raise UserError(f"the checkpoint's first {trainer.global_step} steps were not private: start a new run")
        if self._resumed is not None:
            refuse_change(self._resumed, self.planned.settings())
        if self.steps != trainer.global_step:
            raise UserError(
                f"the model has taken {trainer.global_step} steps, its ledger {self.steps}: it is not whole"
            )

    def _record(self) -> None:
        """Enter the coming release in the ledger. The entry comes first: a crash may over-count, never under-count."""
        if self._allowed == 0:
            raise UserError(f"the budget epsilon={self.epsilon} is spent: another step would pass it")
        self._allowed -= 1
        # A shuffled pass is one event; a resumed run shuffles anew, so its first step starts another.
        if self.steps % self.sampling.steps_per_event == 0 or self._first:
            self.ledger.record(self.sampling.event(self.sigma, self.steps))
        self._first = False
        self.noise.at(self.steps)
        self.steps += 1
