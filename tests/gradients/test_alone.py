"""Users taken one by one: exactly, under any strategy, from any batch, and for models that are compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec import private
from dprec.errors import NoRule, UserError
from dprec.gradients import alone
from dprec.gradients.clipping import Clipping, batch_gradients
from dprec.gradients.uses.as_written import AsWritten
from dprec.gradients.uses.batches import batch_tensors, select_users
from dprec.models.learning.optimizers import SGD
from dprec.sparsity import AdaFEST, LazyDP
from tests.one_micro_batch import add_clipped, clipped_sums, distance
from tests.zoo.forms import Product

USERS, LENGTH, ITEMS, DIM = 6, 5, 11, 4


def product(x: Tensor, weight: Tensor) -> Tensor:
    return Product.apply(x, weight)  # type: ignore[no-any-return]


def distances(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cdist(x, weight)


class Histories(nn.Module):
    """A tied table, a norm with a rule, and a weight that meets an operation without one."""

    def __init__(self, mixed: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.norm = nn.LayerNorm(DIM)
        self.weight = nn.Parameter(torch.randn(DIM, DIM))
        self.mixed = mixed

    def losses(self, ids: Tensor) -> Tensor:
        x = self.mixed(self.norm(self.table(ids)), self.weight)
        wanted = (x[:, :-1] * self.table(ids[:, 1:])).sum(-1) - (x[:, :-1] * self.table(ids[:, 1:] // 2)).sum(-1)
        return (F.softplus(-wanted) * (ids[:, 1:] != 0)).sum(1)


def histories(users: int = USERS) -> Tensor:
    ids = torch.randint(1, ITEMS, (users, LENGTH), generator=torch.Generator().manual_seed(0))
    return ids * (torch.arange(LENGTH) < torch.arange(users).unsqueeze(1) % LENGTH + 1)


def model(mixed: Callable[[Tensor, Tensor], Tensor]) -> Histories:
    torch.manual_seed(0)
    return Histories(mixed)


@pytest.fixture(autouse=True)
def not_said_yet() -> None:
    alone._say.cache_clear()
    warnings.simplefilter("ignore")


def released(module: Histories, dtype: torch.dtype | None = None, **options: Any) -> dict[str, Tensor]:
    settings: dict[str, Any] = {
        "noise_multiplier": 0.5,
        "noise_seed": 1,
        "expected_batch": 8,
        "steps": 2,
        "verify": 0.0,
    }
    optimizer = SGD(module.parameters(), lr=0.5)
    run = private(
        module, optimizer, histories(40), losses=module.losses, loader={"sampling_seed": 3}, **settings | options
    )
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
        for batch in run:
            run.step(batch)
    with run.public():
        return {name: p.detach().clone() for name, p in module.named_parameters()}


@pytest.mark.full
@pytest.mark.parametrize("strategy", [None, LazyDP, AdaFEST])
@pytest.mark.parametrize("mode", ["flat", "auto-v"])
def test_training_is_that_of_the_same_model_written_with_rules(strategy: Any, mode: str) -> None:
    found, wanted = (
        released(model(mixed), clipping=mode, sparsity=strategy and strategy()) for mixed in (product, torch.matmul)
    )
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, atol=1e-5), name


def test_it_is_said_once_in_one_line_that_names_the_operation() -> None:
    module = model(distances)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        released(module, steps=2)
    lines = [str(each.message) for each in said if "taken alone" in str(each.message)]
    assert len(lines) == 1
    assert "parameter 'weight' is used by cdist" in lines[0]
    assert "slower" in lines[0]
    assert "\n" not in lines[0]


def test_a_batch_without_a_row_for_each_user_is_not_taken_apart() -> None:
    weight = nn.Parameter(torch.randn(DIM, DIM))

    def losses(batch: Any) -> Tensor:
        return torch.cdist(batch[0], weight).sum((1, 2))

    class Pair(tuple):
        def __len__(self) -> int:
            return USERS

    with pytest.raises(UserError, match="cdist.*no per-user gradient rule"):
        add_clipped(
            {"w": torch.zeros(DIM, DIM)}, {"w": weight}, losses,
            Pair((torch.randn(USERS, LENGTH, DIM), torch.randn(3, DIM))), Clipping(),
        )  # fmt: skip


def test_a_parameter_in_a_row_of_a_square_is_not_taken_for_one_of_each_user() -> None:
    """x[..., 0, :] of a matrix (users, positions) is the first user's row."""

    layer = nn.Linear(4, 3)

    def losses(batch: Tensor) -> Tensor:
        x = batch * layer.weight[1]
        x[..., 0, :] = layer.weight[0]
        return x.square().sum(1)

    with pytest.raises(NoRule, match="__setitem__"):
        batch_gradients(dict(layer.named_parameters()), losses, torch.randn(4, 4))


@dataclass
class Context:
    price: Tensor


@dataclass
class Computed:
    x: Tensor
    price: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.price = self.x.abs().amax(1)


class Wrapped:
    def __init__(self, x: Tensor) -> None:
        self.x = x


def test_users_tensors_are_found_wherever_a_batch_has_them() -> None:
    x = torch.randn(6, 4)
    batch = {"made": Computed(x), "list": [Context(x[:, 0]), (x, "text")]}
    whole, chosen = batch_tensors(batch), batch_tensors(select_users(batch, [3, 1]))
    assert len(whole) == 4
    assert all(torch.equal(own, every[[3, 1]]) for own, every in zip(chosen, whole, strict=True))


def test_an_object_that_nobody_can_take_apart_is_refused() -> None:
    batch = {"x": Wrapped(torch.ones(2, 3))}
    assert len(batch_tensors(batch)) == 1
    with pytest.raises(UserError, match="a batch holds tensors in a Wrapped, which does not show whose they are"):
        select_users(batch, [0])


class Scaled(nn.Module):
    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.layer, self.mixes = nn.Linear(4, 3), mixes

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return (y / y.abs().max() if self.mixes else y.tanh()).square().sum(1)


def compiled(mixes: bool = False) -> Any:
    torch.manual_seed(0)
    return torch.compile(Scaled(mixes), backend="eager")


def clipped(model: Any, x: Tensor) -> dict[str, Tensor]:
    return clipped_sums(model, [x], Clipping("flat", 0.1), model)


def batch() -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.filterwarnings("ignore:.*taken alone")
def test_it_stays_so_until_the_last_is_left() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        raise RuntimeError

    sine = torch.compile(torch.sin, backend=backend)
    mode = AsWritten()
    with mode:
        with mode:
            pass
        assert not sine(torch.zeros(1))


def test_users_whom_it_mixes_are_taken_one_by_one() -> None:
    model, x = compiled(mixes=True), batch()
    model(x)
    x[2] *= 50
    assert distance(clipped(model, x), clipped(model, torch.cat([x[:2], x[3:]]))) <= 0.1 + 1e-6


def test_it_trains_and_is_compiled_again_afterwards() -> None:
    runs = []

    def backend(graph: Any, inputs: Any) -> Any:
        def compiled(*args: Any) -> Any:
            runs.append(1)
            return graph(*args)

        return compiled

    torch._dynamo.reset()
    model: Any = torch.compile(Scaled(), backend=backend)
    model(batch())
    assert len(runs) == 1
    run = private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(40, 4), losses=model, noise_multiplier=1.0,
        expected_batch=10, steps=3, verify=1.0,
    )  # fmt: skip
    for part in run:
        run.step(part)
    assert run.steps == 3
    assert len(runs) == 1
    model(batch())
    assert len(runs) == 2
