"""A script goes on with a saved run, if it is the same run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from dprec.errors import UserError
from dprec.training.script import Training
from tests.training.scripts import Sorter, people, take, training


def saved(steps: int, **options: Any) -> tuple[nn.Module, Training, dict[str, Any]]:
    module = Sorter()
    run = training(module, loader={"sampling_seed": 3}, noise_seed=1, **options)
    for batch in run:
        run.step(batch)
        if run.steps == steps:
            break
    return module, run, {"model": module.state_dict(), "training": run.state_dict()}


def test_a_resumed_run_ends_with_the_ledger_of_an_uninterrupted_one(tmp_path: Any) -> None:
    users = people()
    _, whole, _ = saved(10, users=users)
    _, _, state = saved(4, users=users)
    torch.save(state, tmp_path / "run.pt")
    state = torch.load(tmp_path / "run.pt", weights_only=True)
    module = Sorter()
    module.load_state_dict(state["model"])
    run = training(module, users=users, loader={"sampling_seed": 3}, noise_seed=1)
    run.load_state_dict(state["training"])
    for batch in run:
        run.step(batch)
    assert run.steps == 10
    assert run.ledger.state_dict() == whole.ledger.state_dict()


def go_on(run: Training, state: dict[str, Any]) -> None:
    run.load_state_dict(state["training"])
    take(run)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epsilon": 9}, "epsilon was 8 and is now 9"),
        ({"noise_multiplier": 3.0}, "noise_multiplier was None and is now 3"),
        ({"expected_batch": 13, "epochs": 13 / 6}, "batch_size was 12"),
        ({"epochs": 3}, "steps was 10 and is now 15"),
        ({"max_norm": 2.0}, "max_norm"),
        ({"noise_seed": None}, "noise_seeded"),
        ({}, "not the one that the training state was saved with"),
    ],
)
def test_a_run_is_not_resumed_as_another(options: Any, said: str) -> None:
    module, _, state = saved(3)
    if options:
        options = {"noise_seed": 1, "loader": {"sampling_seed": 3}, **options}
    else:
        module, options = Sorter(), {"noise_seed": 1, "loader": {"sampling_seed": 3}}
    with pytest.raises(UserError, match=said):
        go_on(training(module, **options), state)
