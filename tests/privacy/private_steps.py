"""Private steps without a trainer: users drawn from a batch, micro-batches of similar length, checked each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from dprec.checks.entropy import Streams
from dprec.data import PoissonBatches
from dprec.data.module import as_is
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity.rows.table_strategies import TableStrategies
from dprec.verify.drawn_users import DrawnUsers
from dprec.verify.self_check import SelfCheck


class People:
    """A data set of the rows of one batch; a step's users come in micro-batches of at most `most`."""

    def __init__(self, batch: Any, most: int = 6) -> None:
        self.batch, self.most = batch, most

    def __len__(self) -> int:
        return len(self.batch)

    def __getitems__(self, users: Sequence[int]) -> list[Any]:
        longest_first = sorted(users, key=lambda user: -self._length(user))
        groups = [longest_first[start : start + self.most] for start in range(0, len(users), self.most)]
        return [self.batch.select(group) for group in groups]

    def _length(self, user: int) -> int:
        history = getattr(self.batch, "history", None)
        return 0 if history is None else int((history[user] != 0).sum())


class Steps:
    """A model, its data and its private gradient, stepped by plain SGD."""

    def __init__(
        self,
        model: Any,
        people: Any,
        expected: int = 10,
        clipping: Clipping | None = None,
        sparsity: Sequence[Any] = (),
        verify: float = 1.0,
        sigma: float = 1.0,
        bfloat16: bool = False,
        rate: float = 0.05,
    ) -> None:
        self.model, self.bfloat16 = model, bfloat16
        self.clipping = clipping or Clipping()
        self.parameters = trained_parameters(model)
        self.sampler = PoissonBatches(len(people), expected)
        self.people = people
        self.drawn = DrawnUsers(people.__getitems__, Streams([model, people]))
        step_noise = StepNoise(GaussianNoise(), sigma, expected)
        self.strategies = TableStrategies(sparsity)
        self.strategies.begin(model, self.parameters, step_noise, self.clipping.max_norm)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        self.strategies.guard(model, self.optimizer, 0)
        self.check = SelfCheck(verify, model, self.parameters, self.clipping, self.strategies, self.drawn)
        self.gradient = PrivateGradient(self.clipping, step_noise, padding_rows(model), self.strategies, self.check)
        self._users = iter(())

    def step(self, change: Callable[[list[Any]], list[Any]] = as_is) -> None:
        users = next(self._users, None)
        if users is None:
            self._users = iter(self.sampler)
            users = next(self._users)
        self.drawn.users = users
        batch = change(self.people.__getitems__(users))
        with torch.autocast("cpu", torch.bfloat16) if self.bfloat16 else nullcontext():
            self.gradient(self.parameters, self.losses, batch)
        self.check.stepping(self.optimizer)
        self.strategies.update(self.optimizer)
        self.check.stepped()
        self.optimizer.step()

    def go_on(self, count: int, change: Callable[[list[Any]], list[Any]] | None = None) -> None:
        for _ in range(count):
            self.step(change or as_is)

    def losses(self, batch: Any) -> Tensor:
        losses: Tensor = self.model.losses(batch)
        return losses


def look_at(model: Any, batch: Any) -> None:
    """Have the users of a batch looked at, as if a loader had made it of users 0, 1, ... and a step had drawn all."""
    steps = Steps(model, People(batch, most=len(batch)), expected=len(batch), verify=0.0)
    steps.drawn.users = range(len(batch))
    parts = steps.people.__getitems__(steps.drawn.users)
    steps.check.begin(steps.parameters, steps.losses, parts)
