"""Batches are taken apart, whatever objects hold their users' tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.errors import NoRule, UserError
from dprec.gradients.clipping import Clipping, record
from dprec.gradients.uses.batches import batch_tensors, select_users
from tests.one_micro_batch import clipped_sums, distance

USERS, LARGE = 6, 100.0


def bounded(y: Tensor) -> Tensor:
    """Return 1 where all are small, and less where one is large."""
    return LARGE / y.detach().abs().amax().clamp(min=LARGE)


def test_a_parameter_in_a_row_of_a_square_is_not_taken_for_one_of_each_user() -> None:
    """x[..., 0, :] of a matrix (users, positions) is the first user's row."""

    layer = nn.Linear(4, 3)

    def losses(batch: Tensor) -> Tensor:
        x = batch * layer.weight[1]
        x[..., 0, :] = layer.weight[0]
        return x.square().sum(1)

    with pytest.raises(NoRule, match="__setitem__"):
        record(dict(layer.named_parameters()), losses, torch.randn(4, 4))


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

    def losses(batch: Any) -> Tensor:
        x = batch["x"] if isinstance(batch, dict) else batch.x
        return (layer(x) * bounded(price(batch))).square().sum(1)  # type: ignore[no-any-return]

    layer, x = nn.Linear(4, 3), torch.randn(USERS, 4)
    x[2] *= 1000
    try:
        whole, less = (clipped_sums(layer, [make(part)], Clipping(), losses) for part in (x, torch.cat([x[:2], x[3:]])))
        chosen = select_users(make(x), [3, 1])
    except (UserError, AttributeError):  # of a batch that nobody can take apart
        return
    assert distance(whole, less) <= 1 + 1e-5
    pairs = zip(batch_tensors(chosen), batch_tensors(make(x)), strict=False)
    assert all(torch.equal(own, whole[[3, 1]]) for own, whole in pairs)


def test_an_object_that_nobody_can_take_apart_is_refused() -> None:
    batch = {"x": Wrapped(torch.ones(2, 3))}
    assert len(batch_tensors(batch)) == 1
    with pytest.raises(UserError, match="a batch holds tensors in a Wrapped, which does not say whose they are"):
        select_users(batch, [0])
