"""Steps of every strategy on another device: the rows of the CPU are chosen, and they get the same sums and noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dprec.models.learning.optimizers import SGD, Adam
from dprec.sparsity import EANA, FEST, AdaFEST, Dense, ExponentialSelection, LazyDP
from dprec.sparsity.rows.kinds import Strategy
from tests.device.pretend import DEVICE, OnPretend
from tests.sparsity.support import OTHERS, ROWS, Bags, Run, some, users

pytestmark = [pytest.mark.usefixtures("by_kernels"), pytest.mark.full]
SIZE = ROWS + OTHERS
EVERY: dict[str, Callable[[], list[Strategy]]] = {
    "fest": lambda: [FEST(keep=9)],
    "fest by table": lambda: [FEST(keep=9, per_table=True)],
    "adafest": lambda: [AdaFEST(threshold=1.0)],
    "adafest+": lambda: [FEST(keep=15), AdaFEST(threshold=0.5)],
    "exponential": lambda: [ExponentialSelection(keep=7)],
    "exponential, few": lambda: [ExponentialSelection(keep=2)],
    "exponential among": lambda: [FEST(keep=20), ExponentialSelection(keep=3)],
    "exponential in one": lambda: [ExponentialSelection(keep=3, tables="big.*")],
    "eana": lambda: [EANA()],
    "lazydp": lambda: [LazyDP()],
    "lazydp, replayed": lambda: [LazyDP(aggregate=False)],
    "dense": lambda: [Dense()],
    "mixture": lambda: [AdaFEST(tables="big.*", threshold=1.0), LazyDP(tables="small.*", aggregate=False)],
}
DEBTS = ["lazydp", "lazydp, replayed"]
ONLY_SGD = {*DEBTS, "dense", "mixture"}


class OnDevice(Run):
    """A run whose tables, and what strategies keep of them, lie on a device."""

    def __init__(self, device: torch.device | str, strategies: list[Strategy], **options: Any) -> None:
        super().__init__(strategies, device=device, **options)
        self.device = device
        counts = torch.arange(SIZE) % 2 + torch.linspace(0, 0.1, SIZE, dtype=torch.float64)
        for strategy in strategies:
            if isinstance(strategy, FEST):
                strategy.learn(None, lambda release: counts.to(device))

    def take(self, steps: int = 3, **rates: float) -> list[dict[str, Tensor | None]]:
        """Step with micro-batches of different length; return which rows might change in each."""
        chosen = []
        for step in range(steps):
            self.noise.at(step)
            batch = users(4, seed=step)
            parts = [some(batch, slice(0, 1)), some(batch, slice(1, 4))]
            self.step(*(Bags(part.bags.to(self.device), part.ids.to(self.device)) for part in parts), **rates)
            chosen.append({name: None if r is None else r.cpu() for name, r in self.strategies._chosen.items()})
        return chosen

    def settled(self) -> dict[str, Tensor]:
        return {name: value.cpu() for name, value in self.weights().items()}


def both(name: str, **options: Any) -> tuple[OnDevice, OnDevice]:
    return OnDevice("cpu", EVERY[name](), **options), OnDevice(DEVICE, EVERY[name](), **options)


@pytest.mark.parametrize(
    ("name", "optimizer"), [(name, SGD) for name in EVERY] + [(name, Adam) for name in EVERY if name not in ONLY_SGD]
)
def test_the_rows_of_the_cpu_are_chosen(name: str, optimizer: Any) -> None:
    """Gradients have no noise here, but choices do."""
    runs = both(name, sigma=1.0, optimizer=optimizer, lr=0.1)
    for run in runs:
        run.gradient.step_noise = type(run.gradient.step_noise)(run.noise, 0.0, run.gradient.step_noise.expected_batch)
        for strategy in run.strategies.in_order:
            strategy.std = 0.0
        if any(isinstance(s, (LazyDP, Dense)) for s in run.strategies.in_order):
            run.strategies.guard(run.module, run.optimizer, 0)
    there, found = (run.take() for run in runs)
    for exact, got in zip(there, found, strict=True):
        assert exact.keys() == got.keys()
        for table in exact:
            assert (exact[table] is None) == (got[table] is None)
            assert exact[table] is None or torch.equal(exact[table], got[table])  # type: ignore[arg-type]
    assert all(isinstance(p, OnPretend) for p in runs[1].module.parameters())
    after = runs[1].settled()
    for parameter, value in runs[0].settled().items():
        assert torch.allclose(after[parameter], value, atol=1e-5), parameter


def test_noise_that_is_replayed_is_bit_for_bit_that_of_the_cpu() -> None:
    """The same stream on both: only sums of gradients, which are rounded in another order, may differ."""
    here, there = both("lazydp, replayed", sigma=1.0)
    for run in (here, there):
        (strategy,) = run.strategies.in_order
        for lazy in strategy._tables.values():  # type: ignore[attr-defined]
            lazy.take(torch.arange(0, device=run.device), lazy.values[:0], _rates(0.5))
            lazy.take(torch.arange(0, device=run.device), lazy.values[:0], _rates(0.3))
            lazy.settle(None)
    after = there.settled()
    start = Run([]).weights()
    for name in ("big.weight", "small.weight"):
        assert torch.equal(after[name], here.settled()[name])
        assert bool((after[name] != start[name]).any(1)[1:].all())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {"weight_decay": decay}) for name in DEBTS for decay in (0.0, 0.1)),
        ("lazydp, replayed", {"momentum": 0.5, "weight_decay": 0.1}),
    ],
)
def test_every_row_gets_the_noise_that_it_owes(name: str, options: dict[str, float]) -> None:
    """Rows that nobody reads have the variance of the CPU's; padding has none."""
    spread = []
    for run in both(name, sigma=50.0, **options):
        start = {n: v.cpu() for n, v in run.weights().items()}
        run.take(4)
        after = run.settled()
        assert torch.equal(after["big.weight"][0], start["big.weight"][0])
        moved = (after["big.weight"] - start["big.weight"])[1:]
        assert bool((moved != 0).all())
        spread.append(float(moved.double().square().mean()))
    assert 0.6 < spread[1] / spread[0] < 1.6  # of 368 numbers each


@pytest.mark.parametrize("name", ["dense", "eana", "fest"])
def test_noise_is_in_the_rows_that_should_have_it(name: str) -> None:
    _, run = both(name, sigma=3.0)
    start = {n: v.cpu() for n, v in run.weights().items()}
    (chosen,) = run.take(1)
    after = run.settled()
    for table in ("big.weight", "small.weight"):
        moved = (after[table] != start[table]).all(1)
        moved[0] |= table == "big.weight"  # padding
        if chosen[table] is not None:
            expected = torch.zeros_like(moved).index_fill_(0, chosen[table], True)  # type: ignore[arg-type]
            expected[0] |= table == "big.weight"
            assert torch.equal(moved, expected)
        elif name == "dense":
            assert bool(moved.all())
        else:
            assert 0 < int(moved.sum()) < len(moved)


def test_state_goes_on_where_it_was() -> None:
    """What a checkpoint has of a run on one device is taken over by one on another."""
    for name, options in (("adafest+", {}), ("lazydp, replayed", {"momentum": 0.9})):
        _, there = both(name, **options)
        there.take(2)
        state = [
            {key: value.cpu() if isinstance(value, Tensor) else value for key, value in each.items()}
            for each in there.strategies.state_dict()
        ]
        later = OnDevice(DEVICE, EVERY[name](), **options)
        later.strategies.load_state_dict(state)
        later.strategies.begin(later.module, later.module.trained, later.gradient.step_noise, 1.0)
        later.strategies.guard(later.module, later.optimizer, 2)
        assert later.take(2)


def _rates(rate: float) -> Any:
    from dprec.sparsity.rows.kinds import Rates

    return Rates(rate)
