"""Losses, layers and ways of writing them that nothing else here has: exact, or refused in one line that is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dprec import private
from dprec.errors import UserError
from dprec.gradients.clipping import Clipping
from tests.one_micro_batch import clipped_sums, distance, one_by_one
from tests.training.scripts import take

USERS = 12
BOUND = Clipping("flat", 0.05)
Losses = Callable[[list[Tensor]], Any]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        self.table = nn.Parameter(torch.randn(6, 6))
        self.normal = nn.BatchNorm1d(6, affine=False, track_running_stats=False)

    def losses(self, x: Tensor, kind: Tensor) -> Tensor:
        return F.cross_entropy(self.out(x), kind, reduction="none")


def people(size: int = USERS) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(size, 6, generator=draw), torch.arange(size) % 3]


def trained(network: Network, losses: Losses, **options: Any) -> None:
    optimizer = torch.optim.SGD(network.parameters(), 0.01)
    data = TensorDataset(*people())
    given = {"noise_multiplier": 1.0, "expected_batch": 6, "steps": 4, "delta": 1e-3, "verify": 1.0}
    take(private(network, optimizer, data, losses=losses, **given | options))


class Rows(list[Tensor]):
    """A batch of a list of tensors, as long as its users."""

    def __len__(self) -> int:
        return len(self[0])

    def select(self, users: Any) -> Rows:
        return Rows([tensor[list(users)] for tensor in self])


def test_rows_that_are_changed_in_place_after_their_use_are_refused_for_that() -> None:
    network = Network()

    def losses(batch: list[Tensor]) -> Tensor:
        rows = network.table[torch.arange(6)]
        used = batch[0] @ rows
        rows.mul_(2.0)
        return network.losses(used + batch[0] @ rows, batch[1])

    with pytest.raises(UserError, match=r"'table' is changed in place after its use"):
        trained(network, losses)


def test_a_user_who_is_alone_and_has_no_such_rows_stops_no_run() -> None:
    network = Network()

    def losses(batch: list[Tensor]) -> Tensor:
        x, kind = batch
        hidden = network.inner(x).clone()
        hidden[kind == 1] = x[kind == 1] @ network.table
        return network.losses(hidden, kind)

    for size in (1, 2, USERS):
        batch = Rows(people(size))
        found, exact = clipped_sums(network, [batch], BOUND, losses), one_by_one(network, batch, BOUND, losses)
        assert distance(found, exact) <= 1e-4 * BOUND.max_norm
    trained(network, losses, steps=10, loader={"max_users": 1})


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda each: None, "returns None: return one loss per user"),
        (lambda each: list(each), "returns a list"),
        (lambda each: (each, each), "returns a tuple"),
        (lambda each: {"loss": each}, "returns a dict"),
        (lambda each: 1.0, "returns a float"),
        (lambda each: each.detach().numpy(), "returns a ndarray"),
        (lambda each: torch.complex(each, each), "complex"),
        (lambda each: each.mean(), r"shape \(\)"),
        (lambda each: each[:, None], "shape"),
    ],
)
@pytest.mark.parametrize("expected", [6, 1])
def test_losses_that_are_no_number_for_each_user_are_refused_in_one_line(
    spoil: Callable[[Tensor], Any], said: str, expected: int
) -> None:
    network = Network()
    with pytest.raises(UserError, match=said):
        trained(network, lambda batch: spoil(network.losses(*batch)), expected_batch=expected, steps=30)
