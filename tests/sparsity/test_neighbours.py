"""Two data sets that differ by one user: the choice of rows, with its noise replayed, differs by that user's rows.

And with the same rows chosen the sum differs by no more than the bound. Histories differ in length, so that the one who
leaves may be the longest, who decides the shape of everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dprec.accounting.release import ExactSums
from dprec.data.draws.batch import SequenceBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity import FEST, AdaFEST, ExponentialSelection
from dprec.sparsity.rows.counts import look_ups
from dprec.sparsity.rows.kinds import BatchRows, Strategy
from dprec.sparsity.rows.table_strategies import TableStrategies
from dprec_kernels.contribution_map import contributions
from dprec_kernels.ordering import is_among
from tests.sparsity.test_reads import (
    LONGEST,
    BrokenByPadding,
    Declared,
    Relative,
    Together,
    encoder,
    sequences,
    trained,
)

MODELS: dict[str, Callable[[], Any]] = {
    "places": Relative,
    "declared places": Declared,
    "broken by padding": BrokenByPadding,
    "encoder": encoder,
}
BOUND = 0.7
TABLES = ["table.*", "rel.*", "embedding.*", "own_context.*"]  # all that are looked up by id alone


class Replayed:
    """A choice that looks at a batch: what it adds noise to, and noise in which each row has its place."""

    looked: Tensor  # (rows,) counts or worth, before noise

    def noise_of_rows(self, size: int) -> Tensor:
        return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


class ReplayedAdaFEST(Replayed, AdaFEST):
    bound = 0.8

    def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor:
        rows, sums = contributions(batch.row, batch.user, self.space.size, self.bound)
        self.looked = torch.zeros(self.space.size, dtype=torch.float64).index_copy_(0, rows, sums)
        noisy = self.looked + 0.5 * self.noise_of_rows(self.space.size)
        chosen = (noisy >= self.threshold).nonzero().squeeze(1)
        return chosen if among is None else chosen[is_among(chosen, among)]


class ReplayedExponential(Replayed, ExponentialSelection):
    bound = 0.8

    def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor:
        rows, worth = batch.summed(self.bound)
        self.looked = torch.zeros(self.space.size, dtype=torch.float64).index_copy_(0, rows, worth.double())
        noisy = self.looked + 0.1 * self.noise_of_rows(self.space.size)
        if among is not None:
            noisy[~is_among(torch.arange(len(noisy)), among)] = -torch.inf
        return noisy.topk(self.keep).indices.sort()[0]


class Counted(ExactSums):
    """Counts with the same noise for all neighbours."""

    def __call__(self, release: Any, size: int, users: int, portions: Any) -> np.ndarray:
        self.exact = super().__call__(release, size, users, portions)
        return self.exact + 0.3 * torch.randn(size, generator=torch.Generator().manual_seed(6)).double().numpy()


STRATEGIES: dict[str, Callable[[], list[Strategy]]] = {
    "fest": lambda: [FEST(keep=15, tables=TABLES)],
    "adafest": lambda: [ReplayedAdaFEST(threshold=0.4, tables=TABLES)],
    "adafest+": lambda: [FEST(keep=20, tables=TABLES), ReplayedAdaFEST(threshold=0.3, tables=TABLES)],
    "exponential": lambda: [ReplayedExponential(keep=9, tables=TABLES)],
    "exponential behind fest": lambda: [FEST(keep=20, tables=TABLES), ReplayedExponential(keep=9, tables=TABLES)],
}


class World:
    """One data set, its choices and its sum."""

    def __init__(self, model: str, strategies: str, users: SequenceBatch, cut: int, loud: float, mode: Any) -> None:
        module = MODELS[model]()
        module.metrics = None  # of clicks: 60 MB for each of many models
        self.module, self.users = module.double(), users
        with torch.no_grad():
            for parameter in self.module.parameters():
                parameter.mul_(loud)
        self.strategies, noise = TableStrategies(STRATEGIES[strategies]()), GaussianNoise(1)
        self.strategies.begin(self.module, trained(self.module), StepNoise(noise, 1.0, 1.0), 0.25)
        self.gradient = PrivateGradient(
            Clipping(mode, BOUND), StepNoise(noise, 0.0, 1), padding_rows(self.module), self.strategies
        )
        self.parts = [users.select(range(i, min(i + cut, len(users)))) for i in range(0, len(users), cut)]
        self.counts: Tensor = torch.zeros(0)
        (first, *_) = self.strategies.in_order
        if isinstance(first, FEST):
            sums = Counted()
            first.learn(
                None,
                lambda release: torch.from_numpy(sums(release, first.space.size, len(users), self._portions(first))),
            )
            self.counts = torch.from_numpy(sums.exact)

    def _portions(self, strategy: Strategy) -> Any:
        users = Together(self.users)
        return look_ups(strategy.space, self.module.losses, trained(self.module), users) if len(self.users) else ()

    def step(self) -> dict[str, Tensor]:
        self.gradient(trained(self.module), self.module.losses, self.parts)
        return {name: p.grad for name, p in self.module.named_parameters() if p.grad is not None}

    @property
    def looked(self) -> Tensor:
        strategy = self.strategies.in_order[-1]
        return strategy.looked if isinstance(strategy, Replayed) else torch.zeros(0)


def without(users: SequenceBatch, user: int) -> SequenceBatch:
    rest = [other for other in range(len(users)) if other != user]
    return users.select(rest) if rest else SequenceBatch(users.history[:0], users.targets[:0])


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "strategies"),
    [
        *(("places", "adafest"), ("declared places", "exponential behind fest"), ("broken by padding", "adafest+")),
        *(
            ("broken by padding", "exponential"),
            ("encoder", "fest"),
            ("encoder", "adafest"),
            ("encoder", "exponential"),
        ),
    ],
)
@settings(max_examples=4, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    seed=st.integers(0, 10_000),
    cut=st.integers(1, 4),
    loud=st.sampled_from([1.0, 30.0, 1e-3]),
    mode=st.sampled_from(["auto-v", "auto-s", "flat"]),
)
@example(lengths=[9, 4, 1], seed=0, cut=3, loud=1.0, mode="auto-v")
@example(lengths=[7, 7, 5, 2], seed=1, cut=2, loud=30.0, mode="flat")
def test_a_user_changes_the_choice_in_their_own_rows_and_the_sum_within_the_bound(
    model: str, strategies: str, lengths: list[int], seed: int, cut: int, loud: float, mode: Any
) -> None:
    users = sequences(sorted(lengths, reverse=True), seed)
    compare(lambda own: World(model, strategies, own, cut, loud, mode), users, without)


def compare(world_of: Callable[[Any], World], users: Any, without: Callable[[Any, int], Any]) -> None:
    """Leave out one user after the other, and look at counts, choices and the sum."""
    everybody = world_of(users)
    whole = everybody.step()
    for user in range(len(users)):
        other, alone = world_of(without(users, user)), world_of(users.select([user]))
        if len(everybody.counts):
            moved = (everybody.counts - other.counts).abs()
            assert float(moved.norm()) <= 1 + 1e-9
            assert _most(moved[alone.counts == 0]) < 1e-12
        for world in (other, alone):
            if len(everybody.counts):  # the next choice is among the same rows
                world.strategies.in_order[0].load_state_dict(everybody.strategies.in_order[0].state_dict())
            world.step()
        if len(everybody.looked):
            bound, moved = everybody.strategies.in_order[-1].bound, (everybody.looked - other.looked).abs()  # type: ignore[attr-defined]
            exact = isinstance(everybody.strategies.in_order[-1], AdaFEST)
            assert float(moved.norm() if exact else moved.max()) <= bound * (1 + 1e-6)
            assert _most(moved[alone.looked == 0]) <= 1e-9
            if exact:
                _differ_only_there(everybody, other, alone.looked != 0)
        other.strategies.choose = lambda _, own=other.strategies: _chosen_alike(own, everybody.strategies)  # type: ignore[method-assign]
        rest = other.step()
        off = sum(float((whole[name].to_dense() - rest[name].to_dense()).double().square().sum()) for name in whole)
        assert off**0.5 <= BOUND * (1 + 1e-6)


def _most(values: Tensor) -> float:
    return float(values.max()) if len(values) else 0.0


def _differ_only_there(one: World, other: World, own: Tensor) -> None:
    space = one.strategies.in_order[-1].space
    for name, rows in one.strategies._chosen.items():
        others = other.strategies._chosen[name]
        assert rows is not None
        assert others is not None
        differing = set(rows.tolist()) ^ set(others.tolist())
        assert all(own[space.flat(name, torch.tensor(row))] for row in differing)


def _chosen_alike(strategies: TableStrategies, as_in: TableStrategies) -> None:
    strategies._chosen = dict(as_in._chosen)


@pytest.mark.parametrize("strategies", STRATEGIES)
def test_what_is_released_has_the_chosen_rows_and_no_others(strategies: str) -> None:
    for lengths in ([9, 4, 2], [3], []):
        users = sequences(lengths) if lengths else without(sequences([3]), 0)
        world = World("declared places", strategies, users, 2, 1.0, "auto-v")
        released = world.step()
        for name, chosen in world.strategies._chosen.items():
            assert chosen is not None
            padding = world.strategies._tables[name].padding
            rows = [row for row in chosen.tolist() if row not in padding]
            assert released[name].coalesce().indices()[0].tolist() == rows
        if world.looked.numel() and len(world.strategies.in_order) == 1:
            assert released["rel.weight"].coalesce().indices()[0].tolist() == list(range(LONGEST))
