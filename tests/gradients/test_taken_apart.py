"""Values that are on their way through tensors: no user is taken alone without need, and batches are taken apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.errors import NoRule, UserError
from dprec.gradients import alone
from dprec.gradients.clipping import Clipping, record
from dprec.gradients.uses.batches import batch_tensors, select_users
from tests.one_micro_batch import add_clipped

USERS, LARGE = 6, 100.0


def bounded(y: Tensor) -> Tensor:
    """Return 1 where all are small, and less where one is large."""
    return LARGE / y.detach().abs().amax().clamp(min=LARGE)


class Model(nn.Module):
    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.form = nn.Linear(4, 3), form

    def losses(self, batch: Any) -> Tensor:
        loss: Tensor = self.form(self, batch)
        return loss


Form = Callable[[Model, Tensor], Tensor]


def scaled(scale: Callable[[Tensor], Any]) -> Form:
    """Losses that a scale moves which is computed from all users' values."""

    def losses(model: Model, x: Tensor) -> Tensor:
        y = model.layer(x)
        return (y * scale(y.detach())).square().sum(1)  # type: ignore[no-any-return]

    return losses


def clipped(model: Model, batch: Any) -> Tensor:
    parameters = dict(model.named_parameters())
    sums = {name: torch.zeros_like(p, dtype=torch.float64).detach() for name, p in parameters.items()}
    add_clipped(sums, parameters, model.losses, batch, Clipping("flat", 1.0))
    return torch.cat([value.flatten() for value in sums.values()])


def rows(place: int) -> Tensor:
    x = torch.randn(USERS, 4, generator=torch.Generator().manual_seed(0))
    x[place] *= 1000
    return x


SILENT: dict[str, Callable[[Tensor], Any]] = {
    "new_full": lambda y: y.new_full((1,), 2.0),
    "new_tensor": lambda y: y.new_tensor([2.0]),
    "all rows by a slice": lambda y: y[0:] * y[: len(y)],
    "ones like a position": lambda y: torch.ones_like(y.T[0]).sum(),
    "flat and back": lambda y: y.reshape(-1, 1).tanh().view_as(y),
    "zeros that are filled": lambda y: _filled(y),
}


def _filled(y: Tensor) -> Tensor:
    buffer = torch.empty(len(y), 2)
    buffer[:, 0] = y[:, 0]
    buffer[:, 1] = 1.0
    return buffer.sum(1, keepdim=True)


@pytest.mark.parametrize("name", SILENT)
def test_nobody_is_taken_alone_without_need(name: str) -> None:
    alone._say.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clipped(Model(scaled(SILENT[name])), rows(1))


def test_a_parameter_in_a_row_of_a_square_is_not_taken_for_one_of_each_user() -> None:
    """x[..., 0, :] of a matrix (users, positions) is the first user's row."""

    class Marked(Model):
        def losses(self, batch: Any) -> Tensor:
            x = batch * self.layer.weight[1]
            x[..., 0, :] = self.layer.weight[0]
            return x.square().sum(1)

    with pytest.raises(NoRule, match="__setitem__"):
        record(dict((model := Marked(scaled(bounded))).named_parameters()), model.losses, torch.randn(4, 4))


@dataclass
class Context:
    price: Tensor


@dataclass
class Nested:
    x: Tensor
    context: Context

    def __len__(self) -> int:
        return len(self.x)


@dataclass
class Computed:
    x: Tensor
    price: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.price = self.x.abs().amax(1)

    def __len__(self) -> int:
        return len(self.x)


class Named(dict[str, Any]):
    def __len__(self) -> int:
        return len(self["x"])


class Wrapped:
    def __init__(self, x: Tensor) -> None:
        self.x = x


BATCHES: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "a dataclass in a dataclass": (lambda x: Nested(x, Context(x.abs().amax(1))), lambda batch: batch.context.price),
    "fields made afterwards": (Computed, lambda batch: batch.price),
    "a dataclass in a dict": (
        lambda x: Named(x=x, context=Context(x.abs().amax(1))), lambda batch: batch["context"].price,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BATCHES)
def test_users_tensors_are_found_wherever_a_batch_has_them(name: str) -> None:
    make, price = BATCHES[name]

    def losses(model: Model, batch: Any) -> Tensor:
        x = batch["x"] if isinstance(batch, dict) else batch.x
        return (model.layer(x) * bounded(price(batch))).square().sum(1)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    model, x = Model(losses), rows(2)
    try:
        moved = clipped(model, make(x)) - clipped(model, make(torch.cat([x[:2], x[3:]])))
        chosen = select_users(make(x), [3, 1])
    except (UserError, AttributeError):  # of a batch that nobody can take apart
        return
    assert float(moved.norm()) <= 1 + 1e-5
    pairs = zip(batch_tensors(chosen), batch_tensors(make(x)), strict=False)
    assert all(torch.equal(own, whole[[3, 1]]) for own, whole in pairs)


def test_an_object_that_nobody_can_take_apart_is_refused() -> None:
    batch = {"x": Wrapped(torch.ones(2, 3))}
    assert len(batch_tensors(batch)) == 1
    with pytest.raises(UserError, match="a batch holds tensors in a Wrapped, which does not say whose they are"):
        select_users(batch, [0])
