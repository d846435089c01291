"""The operation against its reference, at awkward sizes, whether softmaxes are kept or computed again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dprec_kernels import catalogue_softmax, reference
from dprec_kernels.catalogue_softmax import centred, pieces, users

CASES = {  # users, positions, items, width; scores held at once
    "odd sizes": ((3, 7, 11, 5), torch.float32, 1 << 20),
    "odd sizes, user by user": ((2, 63, 37, 60), torch.float64, 1),
    "one item beside padding": ((1, 1, 2, 1), torch.float32, 1),
    "several tiles of items": ((5, 1, 9000, 8), torch.float32, 1 << 20),
}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_equal_the_reference(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    (users, length, items, dim), dtype, piece = CASES[case]
    tolerance = TOLERANCE[dtype]
    monkeypatch.setattr(pieces, "PIECE", piece)
    hidden = torch.randn(users, length, dim, dtype=dtype, requires_grad=True)
    table = torch.randn(items, dim, dtype=dtype, requires_grad=True)
    target = torch.randint(0, items, (users, length))
    weight = torch.rand(users, length, dtype=dtype)
    fast, plain = catalogue_softmax(hidden, table, target), reference.catalogue_softmax(hidden, table, target)
    assert torch.allclose(fast, plain, atol=tolerance, rtol=tolerance)
    fast_gradients = torch.autograd.grad((fast * weight).sum(), (hidden, table))
    plain_gradients = torch.autograd.grad((plain * weight).sum(), (hidden, table))
    for found, exact in zip(fast_gradients, plain_gradients, strict=True):
        assert torch.allclose(found, exact, atol=tolerance * 10, rtol=tolerance)
    each = reference.user_gradients(hidden.detach(), table.detach(), target, weight)
    assert torch.allclose(each.sum(0), plain_gradients[1], atol=tolerance * 10, rtol=tolerance)


def test_the_padding_item_takes_no_part() -> None:
    hidden, table = torch.randn(1, 2, 4), torch.randn(6, 4)
    target = torch.tensor([[3, 0]])
    loss = catalogue_softmax(hidden, table, target)
    table[0] = 1e6
    assert torch.equal(catalogue_softmax(hidden, table, target), loss)
    assert loss[0, 1] == 0


def test_another_padding_row_may_be_named() -> None:
    hidden, table = torch.randn(2, 3, 4), torch.randn(6, 4)
    target = torch.tensor([[3, 5, 0], [5, 5, 1]])
    found = catalogue_softmax(hidden, table, target, padding=5)
    assert torch.allclose(found, reference.catalogue_softmax(hidden, table, target, padding=5), atol=1e-6)
    assert (found[target == 5] == 0).all()


def test_large_scores_do_not_overflow() -> None:
    hidden, table = torch.full((1, 1, 2), 1e3), torch.tensor([[0.0, 0], [1e3, 0], [-1e3, 0]])
    assert torch.equal(catalogue_softmax(hidden, table, torch.tensor([[1]])), torch.zeros(1, 1))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="target"):
        catalogue_softmax(torch.zeros(2, 3, 4), torch.zeros(5, 4), torch.zeros(2, 4, dtype=torch.long))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_of_nothing_there_are_no_losses(shape: tuple[int, ...]) -> None:
    hidden, table = torch.zeros(*shape, 4, requires_grad=True), torch.ones(6, 4)
    assert catalogue_softmax(hidden, table, torch.zeros(shape, dtype=torch.int64)).shape == shape


def test_a_table_that_moves_is_looked_at_again() -> None:
    table = torch.randn(50, 8)
    assert centred(table) is table
    assert centred(table[:]).data_ptr() == table.data_ptr()
    table += 1000
    assert centred(table[:]).abs().max() < 10


@pytest.mark.parametrize("rise", [0.5, 7.9, 40.0])
def test_scores_that_rise_from_tile_to_tile_give_what_one_pass_gives(rise: float) -> None:
    """What is taken off is raised in a later tile, or is not, and then exponentials are large."""
    items = 3 * pieces.ITEMS
    table = (rise * (torch.arange(items + 1) // pieces.ITEMS).double() + torch.rand(items + 1).double()).unsqueeze(1)
    hidden = torch.linspace(0.9, 1.1, 8, dtype=torch.float64).view(2, 4, 1)
    target = torch.tensor([[1, 4500, 9000, 7], [4096, 5, 2, 9000]])
    loss, slope, found = users.forward(hidden, table, target, 0, longest=4)
    scores = (hidden @ table.T).index_fill(2, torch.tensor([0]), -torch.inf)
    chances = scores.softmax(2)
    assert torch.allclose(found.log_total, scores.logsumexp(2), atol=1e-12)
    assert torch.allclose(loss, -scores.log_softmax(2).gather(2, target.unsqueeze(2)).squeeze(2), atol=1e-12)
    assert torch.allclose(slope, chances @ table - table[target], atol=1e-10)
    assert found.products is not None
    others = chances.scatter(2, target.unsqueeze(2), 0.0)
    assert torch.allclose(found.products, others @ others.mT, atol=1e-12)
    assert torch.allclose(found.missed, others.sum(2), atol=1e-12)
    weight = torch.tensor([[0.3, 1.0, 0.2, 0.7], [1.0, 0.1, 0.9, 0.4]], dtype=torch.float64)
    total = torch.zeros_like(table)
    found.add_gradient(total, weight)
    exact = torch.einsum("btv,btd->vd", (chances - F.one_hot(target, items + 1)) * weight.unsqueeze(2), hidden)
    assert torch.allclose(total, exact, atol=1e-10)


def problem(users: int = 5, length: int = 7, items: int = 2500, dim: int = 6) -> tuple[Tensor, ...]:
    hidden, table = torch.randn(users, length, dim).double(), torch.randn(items, dim).double()
    target = torch.randint(1, items, (users, length))
    target = target.masked_fill(torch.arange(length) >= torch.tensor([7, 2, 0, 5, 4]).unsqueeze(1), 0)
    return hidden, table, target, torch.rand(users, length).double()


@pytest.mark.parametrize("limit", [0, 40 * 2500 * 8, 1 << 30], ids=["nothing kept", "something", "all"])
def test_two_calls_in_one_graph_and_a_second_backward_pass(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "LIMIT", limit)
    monkeypatch.setattr(pieces, "PIECE", 1)
    hidden, table, target, weight = problem()
    table.requires_grad_()

    def loss(operation: object) -> Tensor:
        return (operation(hidden, table, target) + operation(2 * hidden, table, target)).mul(weight).sum()  # type: ignore[operator]

    (exact,) = torch.autograd.grad(loss(reference.catalogue_softmax), table)
    found = loss(catalogue_softmax)
    for _ in range(2):
        (gradient,) = torch.autograd.grad(found, table, retain_graph=True)
        assert torch.allclose(gradient, exact, atol=1e-12)


def test_nothing_is_kept_where_no_gradient_will_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "room_for", None)  # anyone who wants room fails
    hidden, table, target, _ = problem()
    catalogue_softmax(hidden, table, target)
    with torch.no_grad():
        catalogue_softmax(hidden, table.requires_grad_(), target)
