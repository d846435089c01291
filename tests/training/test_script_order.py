"""Whoever goes past the order of draw, gradient and step is told so at the first step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from dprec.errors import UserError
from dprec.training.script import Training
from tests.training.scripts import BATCH, Sorter, people, take, training


def steps_past_it(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in run:
        F.cross_entropy(module(torch.randn(4, 4)), torch.zeros(4, dtype=torch.long)).backward()
        optimizer.step()


def skips_steps(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in run:
        continue


def accumulates(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)


def steps_twice(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.step(batch)
        optimizer.step()


def asks_twice(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)
        run.backward(batch)


def uses_another_loader(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    other = DataLoader(people(), batch_size=BATCH)
    for _ in run:
        run.step([next(iter(other))])


def uses_another_loader_alone(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in DataLoader(people(), batch_size=BATCH):
        run.step([batch])


def changes_the_batch(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        batch[0].content[0].mul_(2)
        run.step(batch)


def asks_for_losses(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        module(batch[0])


def steps_with_another_optimizer(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    other = torch.optim.Adam(module.parameters())
    for batch in run:
        run.step(batch)
        F.cross_entropy(module(torch.randn(4, 4)), torch.zeros(4, dtype=torch.long)).backward()
        other.step()


def asks_for_a_closure(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)
        optimizer.step(lambda: 0.0)


def steps_in_public(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in run:
        with run.public():
            optimizer.step()


def saves_in_between(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        run.backward(batch)
        run.state_dict()


def takes_coarse_products(run: Training, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in run:
        torch.set_float32_matmul_precision("high")
        try:
            run.step(batch)
        finally:
            torch.set_float32_matmul_precision("highest")


BREACHES: dict[Callable[..., None], str] = {
    steps_past_it: "optimizer.step\\(\\) without a private gradient",
    skips_steps: "no step was taken with it",
    accumulates: "not followed by optimizer.step",
    steps_twice: "optimizer.step\\(\\) without a private gradient",
    asks_twice: "ran twice",
    uses_another_loader: "another batch than was drawn",
    uses_another_loader_alone: "no batch was drawn",
    changes_the_batch: "changed since",
    asks_for_losses: "give training.step\\(batch\\) the whole batch",
    steps_with_another_optimizer: "written to between two steps",
    asks_for_a_closure: "closure",
    steps_in_public: "without a private gradient",
    saves_in_between: "save after the step",
    takes_coarse_products: "float32_matmul_precision.* was set to high while training",
}


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__)
def test_a_script_that_breaks_the_rules_is_told_at_its_first_step(breach: Callable[..., None]) -> None:
    module = Sorter()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    run = training(module, optimizer=optimizer)
    with pytest.raises(UserError, match=BREACHES[breach]):
        breach(run, module, optimizer)
    assert run.steps <= 1


@pytest.mark.parametrize(
    "change",
    [
        lambda module: F.cross_entropy(module(torch.randn(4, 4)), torch.zeros(4, dtype=torch.long)).backward(),
        lambda module: nn.utils.clip_grad_norm_(module.parameters(), 1e-3),
        lambda module: module.network[0].weight.grad.data.mul_(0.5),
        lambda module: module.zero_grad(),
    ],
    ids=["adds", "clips", "writes behind torch", "clears"],
)
def test_a_gradient_is_stepped_by_as_it_was_made(change: Callable[[Any], object]) -> None:
    module = Sorter()
    run = training(module)
    run.backward(next(iter(run)))
    change(module)
    with pytest.raises(UserError, match="was changed before the optimizer's step"):
        run.trained.optimizer.step()
    assert run.steps <= 1


def test_a_batch_that_a_loop_left_is_offered_again() -> None:
    run = training()
    first = next(iter(run))
    with pytest.raises(UserError, match="save after the step"):
        run.state_dict()
    again = next(iter(run))
    assert again is first
    run.step(again)
    assert next(iter(run)) is not first


def test_a_gradient_without_its_step_is_not_left_behind() -> None:
    run = training()
    run.backward(next(iter(run)))
    with pytest.raises(UserError, match="not followed by optimizer.step"):
        next(iter(run))


@pytest.mark.parametrize("post", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_hook_of_the_optimizer_changes_no_step(late: bool, post: bool) -> None:
    module = Sorter()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def hook(*_: Any) -> None:
        with torch.no_grad():
            weight = module.network[0].weight
            (weight if post else weight.grad).add_(1.0)

    register = optimizer.register_step_post_hook if post else optimizer.register_step_pre_hook
    if not late:
        register(hook)
    run = training(module, optimizer=optimizer)
    if late:
        register(hook)
    with pytest.raises(UserError, match="written to" if post else "was changed"):
        take(run)


@pytest.mark.parametrize("lost_by", ["collate", "Ctrl-C", "an empty iterator", "rows"])
def test_an_error_that_ends_a_draw_is_followed_by_no_other(lost_by: str) -> None:
    """Who goes on decides by what a draw holds whether it counts: it would not be Poisson sampling any more."""
    failing = False

    def collate(items: list[Any]) -> Any:
        if failing and items and lost_by == "an empty iterator":
            next(iter([]))
        if failing and items and lost_by in ("collate", "Ctrl-C"):
            raise (MemoryError if lost_by == "collate" else KeyboardInterrupt)("two long histories met")
        rows = items[1:] if failing and lost_by == "rows" and len(items) > 1 else items
        return tuple(torch.stack(column) for column in zip(*rows, strict=True)) if rows else []

    run = training(loader={"collate_fn": collate, "max_users": 8})
    steps = iter(run)
    run.step(next(steps))
    failing = True
    lost = "long histories|have .* rows|no StopIteration"
    with pytest.raises((MemoryError, UserError, KeyboardInterrupt), match=lost):
        next(steps)
    failing = False
    for _ in range(2):
        with pytest.raises(UserError, match=f"an error ended a draw .*({lost}).*reveal who was in it"):
            next(iter(run))
    for ask in (lambda: run.step([]), run.state_dict):
        with pytest.raises(UserError, match="an error ended a draw"):
            ask()
    assert run.steps == 1
