"""Tables whose rows owe noise, in a script: whatever shows them pays first, and nothing else takes their place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec import private
from dprec.errors import UserError
from dprec.sparsity import Dense, LazyDP
from dprec.sparsity.rows.kinds import Strategy
from dprec.training.script import Training
from tests.training.scripts import descending

USERS, ITEMS, DIM = 100, 50, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items, self.out = nn.Embedding(ITEMS, DIM), nn.Linear(DIM, 1)

    def losses(self, x: Tensor) -> Tensor:
        return (self.out(self.items(x).mean(1)).squeeze(1) - 1).square()

    def forward(self, x: Tensor) -> Tensor:
        return self.items(x)


class ByIndex(Model):
    def forward(self, x: Tensor) -> Tensor:
        return self.items.weight[x]


class OfAnother(Model):
    """A part holds the table's weight under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = Tower(self.items.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.tower(x)


class Tower(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.table = weight

    def forward(self, x: Tensor) -> Tensor:
        return self.table[x]


def trained(model: nn.Module, steps: int = 3, strategy: Strategy | None = None) -> Training:
    """The noise of a step moves a weight by 2.5."""
    users = torch.randint(0, ITEMS, (USERS, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    strategy = strategy or LazyDP(tables="items.weight")
    return private(model, optimizer, users, sparsity=strategy, steps=steps, expected_batch=5, noise_multiplier=125.0)


def one_step(model: nn.Module, strategy: Strategy | None = None) -> None:
    training = trained(model, strategy=strategy)
    for batch in training:
        training.step(batch)
        break


def has_noise(before: Tensor, after: Tensor) -> bool:
    """Whether every row has moved by more than gradients of norm 1 / 5 times the rate do."""
    return bool(((after.float() - before).abs().amax(1) > 0.04).all())


def test_no_row_owes_noise_after_the_last_step() -> None:
    model = Model()
    before = model.items.weight.detach().clone()
    training = trained(model, steps=1)
    for batch in training:
        training.step(batch)
    assert has_noise(before, model.items.weight.detach())
    assert has_noise(before, model.half().state_dict()["items.weight"])


@pytest.mark.parametrize("kind", [Model, ByIndex, OfAnother])
def test_predictions_pay_however_the_model_reads_its_table(kind: type[Model]) -> None:
    model, every = kind(), torch.arange(ITEMS)
    before = model(every).detach()
    one_step(model)
    assert has_noise(before, model(every).detach())


def test_a_table_that_is_converted_pays_where_it_is_then_or_says_why_not() -> None:
    model = Model()
    before = model.items.weight.detach().clone()
    one_step(model)
    model.items.double()
    model.items.float()  # the same numbers elsewhere
    assert has_noise(before, model.state_dict()["items.weight"])
    one_step(model)
    before = model.items.weight.detach().clone()
    with pytest.raises(UserError, match=r"'items.weight' was converted or moved while its rows may owe noise"):
        model.half().state_dict()
    assert copy.deepcopy(Model().half()).items.weight.dtype == torch.float16


def doubled(model: Model) -> None:
    with torch.no_grad():
        model.items.weight.mul_(2)


def by_another_optimizer(model: Model) -> None:
    model.items.weight.square().sum().backward()
    torch.optim.SGD([model.items.weight], lr=0.1).step()
    model.items.weight.grad = None


def elsewhere(model: Model) -> None:
    model.items.double()
    model.items.float()


@pytest.mark.parametrize("write", [doubled, by_another_optimizer, elsewhere])
def test_writes_between_steps_are_refused(write: Callable[[Model], None]) -> None:
    model = Model()
    training = trained(model)
    with pytest.raises(UserError, match=r"'items.weight' was written to between two steps"):  # noqa: PT012
        for batch in training:
            training.step(batch)
            write(model)


def test_what_pays_between_steps_is_no_write() -> None:
    model = Model()
    training = trained(model)
    for batch in training:
        training.step(batch)
        model(torch.arange(ITEMS))
        model.state_dict()
        with training.public() as shown:
            shown(torch.tensor([3]))
    assert training.steps == 3
    assert "what the script wrote" not in training.guarantee()


@pytest.mark.parametrize("strategy", [Dense, LazyDP])
def test_a_gradient_without_noise_is_nowhere_to_be_seen(strategy: Any) -> None:
    model = Model()
    training = trained(model, strategy=strategy(tables="items.weight"))
    for batch in training:
        training.backward(batch)
        assert model.items.weight.grad is None
        assert model.out.weight.grad is not None
        training.trained.optimizer.step()
    assert training.steps == 3


def test_another_gradient_of_a_table_is_refused() -> None:
    model = Model()
    training = trained(model)
    with pytest.raises(UserError, match=r"'items.weight'.grad was changed"):  # noqa: PT012
        for batch in training:
            training.backward(batch)
            model.items.weight.grad = torch.ones(ITEMS, DIM)
            training.trained.optimizer.step()


def test_what_a_script_may_write_breaks_no_promise() -> None:
    """The noise of rows is followed from step to step, and a table that is written to is followed anew."""
    torch.manual_seed(0)
    both = nn.ModuleDict({"lazy": nn.Embedding(ITEMS, 64), "dense": nn.Embedding(ITEMS, 64)})
    training = descending(
        both, torch.randint(0, ITEMS, (USERS, 4)), lambda x: sum(table(x).sum((1, 2)) for table in both.values()), 8,
        expected_batch=20, sparsity=[LazyDP(tables="lazy.*"), Dense(tables="dense.*")], verify=1.0,
    )  # fmt: skip
    for batch in training:
        training.step(batch)
        with training.public(), torch.no_grad():
            for table in both.values():
                table.weight.normal_()
    assert "wrote to dense.weight, lazy.weight" in training.guarantee()
