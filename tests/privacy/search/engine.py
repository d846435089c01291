"""What the engine is about to release, before its noise: the clipped sum, and how much noise it is made for."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from dprec.checks.switches import refuse_lacking
from dprec.gradients import norms
from dprec.gradients.clipping import ClippedUsers, Clipping
from dprec.gradients.contributions import building
from dprec.gradients.parameters import padding_rows
from dprec.noise.gaussian import Ahead, GaussianNoise, most_users, rounding
from dprec.noise.step_noise import StepNoise
from dprec.privacy.cores import adding
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity import FEST, AdaFEST, Dense, ExponentialSelection, LazyDP
from dprec.sparsity.rows.choosing import looks
from dprec.sparsity.rows.kinds import BatchRows, RowChoice, Strategy
from dprec.sparsity.rows.row_rules import RowRules
from tests.privacy.search.model import Assembled
from tests.privacy.search.oracle import Sums, trained
from tests.privacy.search.plan import Plan
from tests.privacy.search.users import Users


class Listening(GaussianNoise):
    """Adds nothing, and keeps what it was given."""

    def __init__(self) -> None:
        super().__init__(0)
        self.heard: list[tuple[Tensor, float]] = []

    def add_all_(self, tensors: Sequence[Tensor], std: float, ahead: Ahead | None = None) -> None:
        self.heard += [(tensor.detach().clone(), std) for tensor in tensors]


class Telling(PrivateGradient):
    """Keeps what it measured of the users."""

    told: list[ClippedUsers]

    def __call__(self, *arguments: Any) -> float | None:
        self.told, own = getattr(self, "told", []), adding.add_recorded

        def heard(*given: Any) -> ClippedUsers:
            self.told.append(own(*given))
            return self.told[-1]

        with mock.patch.object(adding, "add_recorded", heard):
            return super().__call__(*arguments)


@dataclass
class Released:
    """One step's sums, in float64, which rows of each table got noise, and what the choice of rows looked at."""

    sums: Sums
    bound: float  # what one user may move, by the noise that was asked for
    noised: dict[str, Tensor] = field(default_factory=dict)
    counts: Tensor | None = None  # (rows,) of users, each of norm 1 at most
    shared: Tensor | None = None  # rows that are taken for everybody's
    clipped: list[ClippedUsers] = field(default_factory=list)  # of each part


class Engine:
    """A plan's engine: the one that a run uses, without a trainer around it."""

    def __init__(self, plan: Plan, model: Assembled) -> None:
        self.plan, self.model, self.parameters = plan, model, trained(model)
        refuse_lacking(model, plan.precision)
        self.clipping = Clipping(plan.mode, plan.max_norm)  # type: ignore[arg-type]
        self.seen: BatchRows | None = None
        strategies = self._strategies()
        self.rules = RowRules(strategies)
        self.noise = Listening()
        self.expected = float(plan.users)
        self.rules.begin(model, self.parameters, StepNoise(self.noise, 1.0, self.expected), plan.max_norm)
        for strategy in strategies:
            self._choose_blindly(strategy)

    def __call__(self, parts: Sequence[Users]) -> Released:
        """Sum a batch."""
        self.noise.heard, self.seen = [], None
        padding = padding_rows(self.model)
        step_noise = StepNoise(self.noise, 1 / self.rules.gradient_noise, self.expected)  # the gradients' own is 1
        gradient = Telling(self.clipping, step_noise, padding, self.rules)
        with self.precision(), self._room():
            gradient(self.parameters, self.model.losses, parts)
        sums, noised, heard = {}, {}, iter(self.noise.heard)
        for name, parameter in self.parameters.items():
            filled = self.rules.held.get(name, parameter.grad)
            assert filled is not None
            if not filled.is_sparse:  # as it was before it was rounded to the parameter's precision
                sums[name] = next(heard)[0].double()
                for row in padding.get(name, ()):
                    sums[name][row] = 0.0
                continue
            if self.rules.choices:
                next(heard)
                noised[name] = filled.indices()[0].clone()
            sums[name] = filled.to_dense().double() * self.expected
        bound = max(
            [std for _, std in self.noise.heard], default=self.plan.max_norm * (1 + rounding(most_users(self.expected)))
        )
        released = Released(sums, bound, noised, clipped=gradient.told if parts else [])
        if self.seen is not None:
            released.counts, released.shared = self._counts(self.seen), self.seen.shared
        return released

    def precision(self) -> AbstractContextManager[Any]:
        """What a trainer would run the model under."""
        mixed = self.plan.precision == "bf16-mixed"
        return torch.autocast("cpu", dtype=torch.bfloat16) if mixed else contextlib.nullcontext()

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Have gradients built in pieces and built again, as those of large models are."""
        with contextlib.ExitStack() as stack:
            for home, name, factor in ((building, "SLICE", 1), (norms, "KEPT", 4)):
                if self.plan.room:
                    stack.enter_context(mock.patch.object(home, name, factor * self.plan.room))
            yield

    def _strategies(self) -> list[Strategy]:
        made: dict[str, Any] = {
            "none": lambda: [],
            "adafest": lambda: [AdaFEST()],
            "fest": lambda: [FEST(keep=5)],
            "exponential": lambda: [ExponentialSelection(keep=4)],
            "lazydp": lambda: [LazyDP()],
            "dense": lambda: [Dense()],
        }
        return made[self.plan.strategy]()  # type: ignore[no-any-return]

    def _choose_blindly(self, strategy: Strategy) -> None:
        """Have a strategy choose the same rows for all neighbours: the noise of its choice has its own tests."""
        if not isinstance(strategy, RowChoice):
            return
        rng = random.Random(f"{self.plan.seed} rows")
        size = strategy.space.size
        rows = torch.tensor(sorted(rng.sample(range(size), rng.randint(1, size))))

        def choose(batch: BatchRows, among: Tensor | None) -> Tensor:
            self.seen = batch if looks(strategy) else None
            return rows

        strategy.choose = choose  # type: ignore[method-assign]

    def _counts(self, seen: BatchRows) -> Tensor:
        """Count users at rows as AdaFEST does: a user's rows together have norm 1."""
        each = torch.bincount(seen.user, minlength=max(1, seen.users)).double().clamp(min=1).rsqrt()
        total = torch.zeros(self.rules.strategies[0].space.size, dtype=torch.float64)
        return total.index_add_(0, seen.row, each[seen.user])
