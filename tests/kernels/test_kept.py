"""The gradient is the same whether all, some or none of the softmaxes are kept from the forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dprec_kernels import catalogue_softmax
from dprec_kernels.catalogue_softmax import kept, pieces, reference
from dprec_kernels.workspace import Workspace


def problem(users: int = 5, length: int = 7, items: int = 2500, dim: int = 6) -> tuple[Tensor, ...]:
    hidden, table = torch.randn(users, length, dim).double(), torch.randn(items, dim).double()
    target = torch.randint(1, items, (users, length))
    target = target.masked_fill(torch.arange(length) >= torch.tensor([7, 2, 0, 5, 4]).unsqueeze(1), 0)
    return hidden, table, target, torch.rand(users, length).double()


@pytest.fixture(params=[0, 3 * 2500 * 8, 9 * 2500 * 8, 1 << 30], ids=["none", "three", "nine", "all"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(kept, "LIMIT", request.param)
    monkeypatch.setattr(pieces, "PIECE", 3 * pieces.ITEMS)  # three positions at a time
    return int(request.param)


def test_the_table_gradient(limit: int) -> None:
    hidden, table, target, weight = problem()
    _, log_total, _, memory = pieces.forward(hidden.flatten(0, 1), table, target.flatten(), 0, keep=True)
    assert (memory is None) == (limit == 0)
    out = torch.zeros_like(table)
    flat = (hidden.flatten(0, 1), table, target.flatten(), log_total, weight.flatten())
    pieces.add_table_gradient(out, *flat, 0, memory)
    assert torch.allclose(out, reference.user_gradients(hidden, table, target, weight).sum(0), atol=1e-12)


def test_two_calls_in_one_graph_and_a_second_backward_pass(limit: int) -> None:
    hidden, table, target, weight = problem()
    table.requires_grad_()

    def loss(operation: object) -> Tensor:
        return (operation(hidden, table, target) + operation(2 * hidden, table, target)).mul(weight).sum()  # type: ignore[operator]

    (exact,) = torch.autograd.grad(loss(reference.catalogue_softmax), table)
    found = loss(catalogue_softmax)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(found, table, retain_graph=True)
        assert torch.allclose(gradient, exact, atol=1e-12)


def test_memory_is_lent_to_one_at_a_time_and_comes_back() -> None:
    workspace = Workspace()
    loan = workspace.lend("kept", 8, torch.zeros(1))
    assert loan is not None
    assert workspace.lend("kept", 8, torch.zeros(1)) is None
    place = loan.memory.data_ptr()
    del loan
    again = workspace.lend("kept", 4, torch.zeros(1))
    assert again is not None
    assert again.memory.data_ptr() == place


def test_nothing_is_kept_where_no_gradient_will_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "room_for", None)  # anyone who wants room fails
    hidden, table, target, _ = problem()
    catalogue_softmax(hidden, table, target)
    with torch.no_grad():
        catalogue_softmax(hidden, table.requires_grad_(), target)
