"""What a script cannot train, and what it may write to a model between steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec import private
from dprec.errors import UserError
from dprec.training.loaders import private_loader
from tests.training.scripts import BATCH, Sorter, people, take, training


class Normed(Sorter):
    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, affine=not frozen), nn.ReLU(), nn.Linear(8, 3))
        self.frozen = frozen
        self.train()

    def train(self, mode: bool = True) -> Normed:
        super().train(mode)
        self.network[1].train(mode and not self.frozen)
        return self


def test_evaluating_in_train_mode_moves_running_statistics_and_is_told() -> None:
    module = Normed(frozen=True)
    run = training(module)
    steps = iter(run)
    run.step(next(steps))
    module.network[1].training = True
    module(torch.randn(9, 4))
    module.train()
    with pytest.raises(UserError, match="running_mean' was written to between two steps"):
        next(steps)


def test_what_is_public_may_be_written_and_is_named() -> None:
    module = Normed(frozen=True)
    run = training(module)
    for batch in run:
        run.step(batch)
        with run.public():
            module.network[1].training = True
            module(torch.randn(9, 4))
        assert module.training
        assert not module.network[1].training
    assert "what the script wrote to network.1.running_mean" in run.guarantee()
    assert "number of users (60)" in run.guarantee()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"losses": None}, "has no losses"),
        ({"epochs": None}, "how long to train"),
        ({"steps": 3}, "how long to train"),
        ({"epochs": None, "steps": -5}, "steps is -5: give at least 1"),
        ({"epochs": -3}, "epochs is -3: give a finite number above 0"),
        ({"epochs": 0}, "epochs is 0: give a finite number above 0"),
        ({"epochs": math.nan}, "epochs is nan: give a finite number above 0"),
        ({"epochs": math.inf}, "epochs is inf: give a finite number above 0"),
        ({"expected_batch": None}, "give expected_batch"),
        ({"expected_batch": 1000}, "expected_batch is 1000 and the data has 60 users: give 1 to 60"),
        ({"expected_batch": 0}, "expected_batch is 0 and the data has 60 users: give 1 to 60"),
        ({"epsilon": None}, "neither epsilon nor noise_multiplier"),
        ({"optimizer": torch.optim.SGD(Sorter().parameters(), lr=1.0)}, "not the model's"),
        ({"users": iter([1])}, "has no __len__\\(\\), which has to return how many users"),
        ({"loader": {"max_users": 0}}, "max_users is 0"),
        ({"loader": {"shuffle": True}}, "shuffle is decided by the draws"),
        ({"loader": {"unit": "click"}}, "unit is 'click': give user or record"),
        ({"loader": {"max_user": 64}}, "a loader has no option 'max_user': did you mean max_users"),
        ({"loader": {"max_users": "64"}}, "max_users is '64': give a whole number"),
        ({"loader": {"collate_fn": "stack"}}, "collate_fn is 'stack': give a function"),
        ({"loader": 64}, "loader is 64: give a dictionary"),
        ({"epochs": "3"}, "epochs is '3': give a number"),
        ({"epochs": None, "steps": 2.5}, "steps is 2.5: give a whole number"),
        ({"expected_batch": "50"}, "expected_batch is '50': give a whole number"),
        ({"losses": torch.zeros(3)}, "losses is a Tensor: give a function"),
        ({"losses": lambda model, batch: batch}, r"<lambda>\(model, batch\) is called with a batch alone"),
        ({"losses": lambda: None}, r"<lambda>\(\) is called with a batch alone"),
    ],
)
def test_what_cannot_be_trained_is_refused_at_once(options: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        training(**options)


def test_an_argument_that_is_misspelt_is_told_of_the_right_one() -> None:
    with pytest.raises(TypeError, match="^private.* unexpected keyword argument 'eps': did you mean epsilon"):
        training(eps=8)


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UserError, match="the model is a NoneType: give one torch.nn.Module"):
        private(None, torch.optim.SGD(Sorter().parameters(), lr=0.1), people(), epsilon=8, epochs=1)  # type: ignore


def test_a_small_share_of_an_epoch_is_one_step() -> None:
    assert len(training(epochs=0.01)) == 1


def test_optimizers_that_cannot_step_are_refused() -> None:
    module = Sorter()
    with pytest.raises(UserError, match="LBFGS asks for the loss several times"):
        training(module, optimizer=torch.optim.LBFGS(module.parameters()))
    with pytest.raises(UserError, match=r"network\.3\.weight.*does not move it"):
        training(module, optimizer=torch.optim.SGD(module.network[0].parameters(), lr=0.1))


@pytest.mark.parametrize(
    "option", [{"unit": "record"}, {"sampling": "shuffle"}, {"sampling_seed": 1}, {"num_workers": 1}]
)
def test_what_a_loader_has_decided_is_not_asked_for_again(option: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"leave out {next(iter(option))}"):
        private_loader(private_loader(people(), BATCH), **option)


def test_processes_that_are_not_connected_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"each would train a model of its own: call torch\.distributed"):
        take(training(Sorter()))
    monkeypatch.setenv("WORLD_SIZE", "1")
    take(training(Sorter()))


class Squeezed(Sorter):
    """Drops the users' dimension where there is one user."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.unsqueeze(1).squeeze())


@pytest.mark.parametrize(
    ("module", "said"),
    [(Squeezed, r"fails for one user \(.*\) in test_script_refusals\.py:\d+"), (Sorter, r"of one user has shape \(\)")],
)
def test_a_dimension_that_one_user_loses_is_named(module: type[Any], said: str) -> None:
    model = module()

    def losses(batch: Any) -> Tensor:
        one = (model(batch[0])[:, 0] - 1).square()
        return one.squeeze() if module is Sorter else one

    run = training(model, losses=losses)
    with pytest.raises(UserError, match=said + ".*squeeze"):
        take(run)
    assert run.steps == 0


def test_losses_that_fail_for_one_user_are_named_with_their_line() -> None:
    model = Sorter()

    def losses(batch: Any) -> Tensor:
        first = model(batch[0])[:2]
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none") + 0 * first[1, 0]  # there is no second

    source = Path(__file__).read_text().splitlines()
    line = next(n for n, read in enumerate(source, 1) if read.endswith("there is no second"))
    run = training(model, losses=losses)
    with pytest.raises(UserError, match=rf"fails for one user \(index 1.* in test_script_refusals\.py:{line}: let it"):
        take(run)
    assert run.steps == 0
