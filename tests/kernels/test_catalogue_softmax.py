"""The operation against its reference, at awkward sizes."""

from __future__ import annotations

import pytest
import torch

from dprec_kernels import catalogue_softmax
from dprec_kernels.catalogue_softmax import centred, pieces, reference

SIZES = [(3, 7, 11, 5), (1, 1, 2, 1), (2, 63, 37, 60), (5, 1, 300, 8)]


@pytest.mark.parametrize(("users", "length", "items", "dim"), SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("piece", [1, 100, 1 << 20])
def test_loss_and_gradients_equal_the_reference(
    monkeypatch: pytest.MonkeyPatch,
    users: int,
    length: int,
    items: int,
    dim: int,
    dtype: torch.dtype,
    tolerance: float,
    piece: int,
) -> None:
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


def test_a_table_that_moves_is_looked_at_again() -> None:
    table = torch.randn(50, 8)
    assert centred(table) is table
    assert centred(table[:]).data_ptr() == table.data_ptr()
    table += 1000
    assert centred(table[:]).abs().max() < 10
