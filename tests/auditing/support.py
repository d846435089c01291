"""A small private run with canaries of the gradient in it, and engines that are broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Size, Tensor

from dprec.auditing import steps
from dprec.auditing.evidence import LowerBound, lower_bound
from dprec.auditing.planted import CanariedSequences, Canaries, marked
from dprec.gradients import norms
from dprec.gradients.contributions import Contribution, Rows
from dprec.noise.gaussian import GaussianNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.training.callback import Privacy
from dprec_kernels import sample_norms
from tests.privacy.support import trainer
from tests.zoo.recommenders import ITEMS, LENGTH, Zoo

Broken = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Watched:
    """What the steps of one run showed of its canaries, in units of the clipping norm."""

    seen: np.ndarray  # (T, m)
    planted: np.ndarray  # (m,)
    sigma: float
    rate: float
    promised: float
    delta: float

    @property
    def bound(self) -> LowerBound:
        return lower_bound(steps.scores(self.seen, self.sigma, self.rate), self.planted, self.delta)

    @property
    def gauges(self) -> dict[str, steps.Gauge]:
        return steps.gauges(self.seen, self.planted, self.sigma, self.rate)

    @property
    def off(self) -> set[str]:
        return {name for name, gauge in self.gauges.items() if gauge.breach}


def watch(
    epsilon: float, broken: Broken = nullcontext, coins: int = 600, steps: int = 8, rate: float = 0.5, seed: int = 0
) -> Watched:
    """Train a tiny model with `coins` canaries under a promise of ε, in an engine that may be broken."""
    users, delta = 20, 1e-6
    canaries = Canaries(occurrences=(1,), each=1, references=100, coins=coins, length=LENGTH, seed=seed)
    everyone = users + 1 + 2 * coins
    data = CanariedSequences(
        canaries, dataset="synthetic", synthetic_users=users, synthetic_items=ITEMS - 1, min_events=0,
        max_length=LENGTH, batch_size=round(rate * everyone), sampling_seed=seed, tokens=10**7,
    )  # fmt: skip
    data.setup()
    torch.manual_seed(seed)
    model = marked(Zoo)()
    model.watch(data.planted.directions, steps)
    privacy = Privacy(epsilon=epsilon, delta=delta, noise_seed=seed, verify=0)
    with broken():
        trainer(privacy, max_steps=steps).fit(model, data)
    seen = model.canaries.seen.double().numpy() * data.batches.expected_batch / privacy.clipping.max_norm
    return Watched(seen, data.planted.direction_coins, privacy.sigma, data.batches.rate, privacy.spent, delta)


def noise_times(factor: float) -> Broken:
    """An engine that draws another noise than it accounts for."""
    honest = GaussianNoise.add_all_

    def add_all_(self: GaussianNoise, tensors: Sequence[Tensor], std: float) -> None:
        honest(self, tensors, std * factor)

    return lambda: mock.patch.object(GaussianNoise, "add_all_", add_all_)


def same_noise_every_step() -> AbstractContextManager[Any]:
    """An engine that starts its generator anew at every step, from the same state."""

    def at(self: GaussianNoise, step: int) -> GaussianNoise:
        self._restart(0)
        return self

    return mock.patch.object(GaussianNoise, "at", at)


def norm_without_cross_terms() -> AbstractContextManager[Any]:
    """An engine that takes each use of a table for another parameter."""
    honest = norms.squared_norms

    def squared_norms(uses: list[Contribution], users: int, shape: Size) -> Tensor:
        if all(isinstance(use, Rows) for use in uses):
            return sum(sample_norms.rows(u.ids, u.values.reshape(*u.ids.shape, -1)) for u in uses)  # type: ignore
        return honest(uses, users, shape)

    return mock.patch.object(norms, "squared_norms", squared_norms)


@contextmanager
def noise_on_touched_rows_only() -> Iterator[None]:
    """An engine whose tables get noise where somebody's gradient is not zero: embedding-aware noise."""
    honest, release, before = GaussianNoise.add_all_, PrivateGradient._fill, list[Tensor]()

    def add_all_(self: GaussianNoise, tensors: Sequence[Tensor], std: float) -> None:
        before[:] = [tensor.clone() for tensor in tensors]
        honest(self, tensors, std)

    def _fill(self: PrivateGradient, *rest: Any) -> None:
        for total in self._sums.values():
            if isinstance(total, Tensor) and total.dim() == 2:  # a part of the one vector that all dense sums are
                untouched = before[0].as_strided(total.shape, total.stride(), total.storage_offset()) == 0
                total[untouched.all(1)] = 0.0
        release(self, *rest)

    with (
        mock.patch.object(GaussianNoise, "add_all_", add_all_),
        mock.patch.object(PrivateGradient, "_fill", _fill),
    ):
        yield
