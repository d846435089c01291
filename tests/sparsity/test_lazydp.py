"""Noise paid late is the noise of dense training: bit for bit where it is replayed, in law where it is drawn."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dprec.distributed.ranks import Ranks
from dprec.errors import UserError
from dprec.models.learning.optimizers import Adam
from dprec.noise.gaussian import GaussianNoise
from dprec.sparsity import AdaFEST, Dense, LazyDP, RowChoice
from dprec.sparsity.lazy import tables as lazy_tables
from dprec.sparsity.lazy.recursion import Decayed, Rates
from dprec_kernels import sparse_update
from dprec_kernels.row_noise import row_noise
from tests.sparsity.support import ROWS, Run, dense_law, some, users

STEPS = 50


class Placed:
    """Noise in which every row of the big table has its place, and all else follows from the step."""

    seeded = False

    def __init__(self, seed: int | None = None) -> None:
        self.seed, self.step, self.ranks = seed, 0, Ranks()

    def beside(self, values: Tensor) -> Placed:
        return self

    def add_all_(self, tensors: Sequence[Tensor], std: float) -> None:
        for tensor in tensors:
            if tensor.shape[0] == ROWS - 1:  # all but padding
                rows = torch.arange(1, ROWS)
                tensor.add_(row_noise(self.seed, 0, rows, self.step, tensor.shape[1]).mul_(std))
            else:
                generator = torch.Generator().manual_seed(1000 * self.step + tensor.numel())
                tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=std)


class Whole(RowChoice):
    """Noise for all rows in every step: the same sums as LazyDP's."""

    def choose(self, batch: Any, among: Any) -> None:
        return None


class WholeRun(Run):
    """With a gradient of the table's size."""

    def fill(self, *parts: Any) -> dict[str, Tensor]:
        filled = super().fill(*parts)
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.to_dense()
        return filled


def batches(step: int) -> list[Any]:
    """Overlapping users in micro-batches; every fifth batch is empty, and most rows are not read in most steps."""
    count = 0 if step % 5 == 2 else 1 + step % 4
    whole = users(count, seed=step, most=4 + step % (ROWS - 3))
    return [some(whole, slice(i, i + 2)) for i in range(0, count, 2)]


@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.03}, {"momentum": 0.8}, {"weight_decay": 0.03, "momentum": 0.8}]
)
def test_replayed_noise_makes_dense_training_bit_for_bit(options: dict[str, float]) -> None:
    late = Placed()
    lazy = Run([LazyDP(tables="big.*", aggregate=False)], noise=late, **options)
    now = Placed(lazy.strategies.in_order[0]._tables["big.weight"].seed)  # type: ignore[attr-defined]
    dense = WholeRun(
        [Whole(tables="big.*")], noise=now, optimizer=torch.optim.SGD, foreach=False, fused=False, **options
    )
    behind = 0
    for step in range(STEPS):
        late.step = now.step = step
        for run in (lazy, dense):
            run.step(*batches(step), lr=0.5 / (1 + step))
        behind += int((lazy.module.big.weight != dense.module.big.weight).any(1).sum())
    assert behind > STEPS  # rows did wait
    for name, value in dense.weights().items():
        assert torch.equal(lazy.weights()[name], value), name


def rows_after(options: dict[str, float], seed: int) -> Tensor:
    """Train with gradients of zero for 12 steps of a falling rate, rows being read at different times."""
    torch.manual_seed(seed)
    noise = GaussianNoise(seed)
    run = Run([LazyDP(tables="big.*")], sigma=2.0, noise=noise, optimizer=torch.optim.SGD, **options)
    strategy = run.strategies.in_order[0]
    read = {3: [1, 2, 5], 4: [2], 7: [1, 6, 7], 10: [2, 3]}
    for step in range(12):
        table = run.module.big.weight
        strategy.read("big.weight", torch.tensor(read.get(step, [4])))
        rows = torch.tensor([read.get(step, [4])])
        run.strategies.held["big.weight"] = torch.sparse_coo_tensor(
            rows, torch.zeros(rows.shape[1], 16), table.shape
        ).coalesce()
        run.optimizer.param_groups[0]["lr"] = 0.5 * 0.8**step
        run.strategies.update(run.optimizer)
    strategy.settle()
    return run.module.big.weight.detach()


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.3}])
def test_noise_drawn_at_once_has_the_law_of_dense_noise(options: dict[str, float]) -> None:
    start = Run([LazyDP(tables="big.*")]).module.big.weight.detach()
    std = 2.0 / 4 * (1 + 1e-4)
    mean, cov = dense_law([(0.5 * 0.8**step, options.get("weight_decay", 0.0), 0.0) for step in range(12)], std)
    weight = torch.stack([rows_after(options, seed) for seed in range(20)])
    unit = ((weight - mean[0, 0] * start) / cov[0, 0] ** 0.5)[:, 1:]  # row 0 is padding
    # Every group of rows that waited alike, each against χ²; rows 1 to 7 were read in between, the others never.
    for group in ([1], [2], [3], [4], [5], [6, 7], list(range(8, ROWS))):
        values = unit[:, [row - 1 for row in group]].flatten()
        assert 1e-3 < stats.chi2.cdf(float(values.square().sum()), len(values)) < 1 - 1e-3, group
    correlation = np.corrcoef(unit.permute(1, 0, 2).flatten(1).numpy())
    off = correlation[~np.eye(len(correlation), dtype=bool)]
    assert abs(off).max() < 5 / unit[:, 0].numel() ** 0.5
    assert torch.equal(weight[:, 0], start[:1].expand(len(weight), -1)), "padding moved"


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}])
def test_without_noise_gradients_arrive_as_in_dense_training(options: dict[str, float]) -> None:
    lazy = Run([LazyDP(tables="big.*")], sigma=0.0, **options)
    dense = Run([], sigma=0.0, **options)
    for step in range(30):
        for run in (lazy, dense):
            run.step(*batches(step), lr=0.5 / (1 + step))
    for name, value in dense.weights().items():
        assert torch.allclose(lazy.weights()[name], value, atol=1e-5), name


@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}])
def test_the_sweep_of_dense_noise_is_dense_training(options: dict[str, float]) -> None:
    """One sweep over the table against a gradient of the table's size, with the same normals."""

    class Counted(Placed):
        def __call__(self, out: Tensor, rows: Tensor) -> Tensor:
            return out.copy_(row_noise(7, 0, rows, self.step, out.shape[1]))

    swept, whole = (Counted(7) for _ in range(2))
    runs = [
        Run([Dense(tables="big.*")], noise=swept, **options),
        WholeRun([Whole(tables="big.*")], noise=whole, **options),
    ]
    for step in range(20):
        swept.step = whole.step = step
        for run in runs:
            run.step(*batches(step), lr=0.5 / (1 + step))
    for name, value in runs[0].weights().items():
        assert torch.allclose(value, runs[1].weights()[name], atol=1e-5), name
    with pytest.raises(UserError, match="Dense needs SGD"):
        Run([Dense()], optimizer=Adam)


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_a_step_that_is_small_beside_all_before_has_its_own_noise(decay: float) -> None:
    """As the last of a million steps whose rates fall to 0: its variance drowns in the sum of theirs, in float64."""
    run = Run([LazyDP(tables="big.*")])
    for step in range(3):
        run.step(*batches(step), lr=1e3, weight_decay=decay / 1e3)
    table = run.strategies.in_order[0]._tables["big.weight"]  # type: ignore[attr-defined]
    for rate in (1e-6, 1e-2, 1e-9):
        table.settle(None)
        rows = torch.tensor([1, 2, 3])
        table.step(rows, torch.zeros(3, 16), Rates(rate, decay / 1e3))
        assert isinstance(table.steps, Decayed)
        mean, noise = table.steps.since(torch.tensor([table.now - 1]))
        assert float(noise) == pytest.approx(rate, rel=1e-4)
        assert float(mean) == pytest.approx(1 - rate * decay / 1e3, rel=1e-9)


@pytest.mark.parametrize(("aggregate", "options"), [(True, {}), (False, {"momentum": 0.9})])
def test_a_rate_that_is_a_tensor_is_that_of_its_own_step(aggregate: bool, options: dict[str, float]) -> None:
    """Schedulers write to it in place, and noise of the steps before is still owed."""
    weights = []
    for rate in (0.5, torch.tensor(0.5)):
        run = Run([LazyDP(tables="big.*", aggregate=aggregate)], lr=rate, **options)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(run.optimizer, 0.1)
        for step in range(4):
            run.step(users(2, seed=step, most=3))
            scheduler.step()
        weights.append(run.weights()["big.weight"])
    assert torch.allclose(*weights, atol=1e-6)


LOOKS: dict[str, Callable[[Any], Tensor]] = {
    "state_dict": lambda module: module.state_dict()["big.weight"],
    "a part's state_dict": lambda module: module.big.state_dict()["weight"],
    "copy": lambda module: copy.deepcopy(module).big.weight,
    "copy of the table": lambda module: copy.deepcopy(module.big).weight,
    "forward": lambda module: torch.cat([module.big.weight[:1], module.big(torch.arange(1, ROWS).unsqueeze(1))]),
    "forward of a copy": lambda module: torch.cat(
        [module.big.weight[:1], copy.deepcopy(module).big(torch.arange(1, ROWS).unsqueeze(1))]
    ),
}


@pytest.mark.parametrize("look", LOOKS)
def test_nobody_sees_a_row_that_owes_noise(look: str) -> None:
    run = Run([LazyDP(tables="big.*")])
    start = run.weights()["big.weight"]
    for step in range(4):
        run.step(users(2, seed=step, most=3))
    assert torch.equal(run.module.big.weight[5:], start[5:])
    seen = LOOKS[look](run.module).detach()
    assert (seen[1:] != start[1:]).any(1).all()
    assert torch.equal(seen[0], start[0])


def test_a_step_that_is_cut_off_leaves_no_gradient_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run([LazyDP(tables="big.*")])
    start, step_rows = run.weights()["big.weight"], sparse_update.step_rows

    def cut_off(*given: Any) -> None:
        step_rows(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(sparse_update, "step_rows", cut_off)
    with pytest.raises(KeyboardInterrupt):
        run.step(users(3, seed=0))
    assert (run.weights()["big.weight"][1:] != start[1:]).any(1).all()


@pytest.mark.parametrize("aggregate", [True, False])
def test_a_gradient_of_a_row_that_was_not_read_is_an_error(aggregate: bool) -> None:
    run = Run([LazyDP(tables="big.*", aggregate=aggregate)])
    run.step(users(2, seed=0, most=3))
    run.strategies.held["big.weight"] = torch.sparse_coo_tensor([[9]], torch.ones(1, 16), (ROWS, 16)).coalesce()
    with pytest.raises(RuntimeError, match="without having been read"):
        run.strategies.update(run.optimizer)


def test_the_module_is_not_pickled_while_it_may_owe() -> None:
    run = Run([LazyDP()])
    with pytest.raises(UserError, match="save its state_dict"):
        torch.save(run.module, io.BytesIO())


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UserError, match="needs SGD"):
        Run([LazyDP()], optimizer=Adam)
    with pytest.raises(UserError, match="nesterov"):
        Run([LazyDP()], optimizer=torch.optim.SGD, nesterov=True, momentum=0.9)
    with pytest.raises(UserError, match=r"LazyDP shares table 'big\.weight' with others"):
        Run([AdaFEST(tables="big.*"), LazyDP(tables="big.*")])
    with pytest.raises(UserError, match="does not allow: set model.momentum 0, or its aggregate to false"):
        Run([LazyDP()], momentum=0.5)
    run = Run([LazyDP()])
    with pytest.raises(UserError, match="momentum was 0 as the run began"):
        run.step(users(3, 0), momentum=0.5)
    run = Run([LazyDP()])
    with pytest.raises(UserError, match="leaves nothing"):
        run.step(users(3, 0), lr=2.0, weight_decay=0.5)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "weight_decay": 0.1}])
def test_steps_are_counted_anew_before_the_history_ends(
    options: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same noise of every step in the same order, whether or not the count ever began anew."""
    weights = []
    for counted in (3, 1000):
        monkeypatch.setattr(lazy_tables, "COUNTED", counted)
        run = Run([LazyDP(tables="big.*", aggregate=False)], noise=Placed(7), **options)
        table = run.strategies.in_order[0]._tables["big.weight"]  # type: ignore[attr-defined]
        table.seed = 7
        for step in range(10):
            run.noise.step = step
            run.step(*batches(step))
        assert table.now == 10 % counted
        assert int(table.settled.max()) <= table.now
        weights.append(run.weights()["big.weight"])
    assert torch.equal(*weights)
