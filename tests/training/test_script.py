"""Private training from a plain script: the steps that Lightning would have taken, whatever optimizer and loader."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dprec import private
from dprec.data import PoissonBatches
from dprec.errors import UserError
from tests.training.scripts import BATCH, USERS, Sorter, people, take, training


@pytest.mark.full
def test_neither_the_package_nor_this_way_in_waits_for_lightning() -> None:
    """Nor for polars, nor `import dprec` for anything; whoever composes nothing does not wait for dp_accounting."""
    code = """
import sys, dprec
def there(*names):
    return sorted({*names} & sys.modules.keys())
heavy = "pytorch_lightning", "lightning", "torchmetrics", "polars", "dp_accounting"
print(there("torch", "numpy", *heavy))
from dprec import private
import torch
print(there(*heavy))
layer, users = torch.nn.Linear(3, 1), torch.randn(50, 3)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
run = dprec.private(layer, optimizer, users, losses=lambda x: layer(x).squeeze(1), epsilon=4, expected_batch=9, steps=2)
for batch in run:
    run.step(batch)
run.guarantee(), run.state_dict()
print(there(*heavy))
assert dprec.sparsity.AdaFEST(threshold=2.0) and dprec.metrics.hit_at and dprec.convex.private_mean
assert dprec.data.Sequences is dprec.Sequences and dprec.models.GRU is dprec.GRU
assert {"convex", "data", "metrics", "models", "sparsity"} <= set(dir(dprec)) & set(dprec.__all__)
assert {"Sequences", "Clicks", "Texts"} <= set(dir(dprec.data))
print(dprec.__name__, hasattr(dprec, "sparse"))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.stdout.splitlines() == ["[]", "[]", "['dp_accounting']", "dprec False"], ran.stderr


def released(**loader: Any) -> Tensor:
    torch.manual_seed(2)
    module, histories = nn.Embedding(9, 3, padding_idx=0), [torch.randint(1, 9, (n % 6 + 1,)) for n in range(40)]

    def losses(batch: Tensor) -> Tensor:
        return (module(batch) * (batch != 0).unsqueeze(2)).sum((1, 2)).square()

    def collate(items: list[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(items, batch_first=True) if items else torch.zeros(0, 1, dtype=torch.long)

    options = {"collate_fn": collate, "sampling_seed": 4, **loader}
    sgd = torch.optim.SGD(module.parameters(), lr=1.0)
    settings: Any = {"noise_multiplier": 1.0, "noise_seed": 1, "expected_batch": 20, "steps": 1, "loader": options}
    run = private(module, sgd, histories, losses=losses, **settings)
    for batch in run:
        run.step(batch)
    return module.weight.detach()


@pytest.mark.parametrize(
    "loader", [{"max_users": 3}, {"tokens": 12}, {"tokens": 12, "max_users": 2}, {"num_workers": 1}]
)
def test_micro_batches_change_no_step(loader: dict[str, Any]) -> None:
    assert torch.allclose(released(**loader), released(), atol=1e-6)


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.AdamW(m.parameters()),
        lambda m: torch.optim.NAdam(m.parameters()),
        lambda m: torch.optim.RMSprop(m.parameters(), momentum=0.9),
        lambda m: torch.optim.SGD([{"params": [p], "lr": 0.1} for p in m.parameters()], momentum=0.9, nesterov=True),
    ],
)
def test_any_optimizer_steps_with_a_schedule(make: Any) -> None:
    module = Sorter()
    optimizer = make(module)
    run = training(module, optimizer=optimizer)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=len(run))
    for batches in run.passes():
        for batch in batches:
            run.backward(batch)
            optimizer.step()
            schedule.step()
        with run.public() as evaluated:
            assert not evaluated.training
    assert run.steps == len(run) == 10
    assert 7.9 < run.spent <= 8
    assert "10 steps of Gaussian noise" in run.guarantee()


def test_a_loader_of_ones_own_keeps_its_batch_size_and_collate() -> None:
    def collate(rows: list[Any]) -> list[Tensor]:
        return [torch.stack(column) for column in zip(*rows, strict=True)]

    loader = DataLoader(people(), batch_size=15, shuffle=True, collate_fn=collate)
    run = training(users=loader, expected_batch=None)
    assert run.run.sampling.expected_batch == 15
    take(run)


def test_autocast_around_the_step_is_in_the_sentence() -> None:
    run = training(steps=1, epochs=None)
    for batch in run:
        with torch.autocast("cpu", torch.bfloat16):
            run.step(batch)
    assert "bfloat16" in run.guarantee()


def test_a_draw_of_nobody_is_a_step() -> None:
    run = training(expected_batch=1, epochs=0.3)
    for batch in run:
        run.step(batch)
    assert run.steps == 18


def test_a_run_stops_before_it_passes_its_budget() -> None:
    run = training(epsilon=2.0, noise_multiplier=1.0, delta=1e-2, epochs=100)
    for batch in run:
        run.step(batch)
    assert 0 < run.steps == len(run) < 500
    assert run.spent <= 2.0
    for _ in run:
        raise AssertionError


def test_a_private_loader_of_ones_own_is_taken_whole() -> None:
    users = torch.randn(USERS, 4)
    draws = PoissonBatches(USERS, BATCH)
    loader = DataLoader(users, batch_sampler=draws, collate_fn=lambda rows: [torch.stack(rows)] if rows else [])
    module = Sorter()
    run = training(module, users=loader, expected_batch=None, losses=lambda x: module(x).square().sum(1))
    for batch in run:
        run.step(batch)
    with pytest.raises(UserError, match="leave out expected_batch"):
        training(users=loader)
