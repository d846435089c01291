"""Norms from overlaps against gradients that are built, and users of very different length."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dprec_kernels.catalogue_softmax import for_users, kept, overlaps, pieces, reference
from dprec_kernels.workspace import workspace


def problem(users: int, length: int, items: int, dim: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    hidden, table = torch.randn(users, length, dim, dtype=dtype), torch.randn(items, dim, dtype=dtype)
    target, ids = torch.randint(1, items, (2, users, length)) if items > 1 else torch.zeros(2, users, length).long()
    lengths = torch.randint(0, length + 1, (users, 1))
    lengths[0] = length
    target = target.masked_fill(torch.arange(length) >= lengths, 0)
    weight, values = torch.rand(users, length, dtype=dtype), torch.randn(users, length, dim, dtype=dtype)
    return hidden, table, target, weight, ids, values


def built(hidden: Tensor, table: Tensor, target: Tensor, weight: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    gradient = reference.user_gradients(hidden, table, target, weight)
    for user, rows in enumerate(ids):
        gradient[user].index_add_(0, rows, values[user])
    return gradient


@pytest.mark.parametrize(
    ("users", "length", "items", "dim"), [(6, 9, 23, 5), (1, 1, 2, 1), (3, 63, 50, 60), (2, 5, 3000, 8), (40, 3, 7, 4)]
)
@pytest.mark.parametrize("piece", [1, 1 << 18])
def test_squared_norms_are_those_of_the_built_gradients(
    monkeypatch: pytest.MonkeyPatch, users: int, length: int, items: int, dim: int, piece: int
) -> None:
    monkeypatch.setattr(pieces, "PIECE", piece)
    hidden, table, target, weight, ids, values = problem(users, length, items, dim)
    exact = built(hidden, table, target, weight, ids, values).flatten(1).square().sum(1)
    loss, log_total, slope, found = pieces.forward_users(hidden, table, target, 0, longest=length)
    assert torch.allclose(loss, reference.catalogue_softmax(hidden, table, target))
    assert sorted(torch.cat([group.users for group in found]).tolist()) == list(range(users))
    for group in found:
        norms = overlaps.squared_norms(group, hidden, table, target, log_total, weight, ids, values, 0)
        assert torch.allclose(norms, exact[group.users], rtol=1e-10)
    assert (slope[target == 0] == 0).all()


def test_users_longer_than_asked_for_have_no_overlap_and_the_same_loss() -> None:
    hidden, table, target, *_ = problem(8, 9, 23, 5)
    lengths = (target != 0).sum(1)
    loss, _, _, found = pieces.forward_users(hidden, table, target, 0, longest=4)
    short = [group.users for group in found if group.products is not None]
    assert set(torch.cat(short).tolist()) == set((lengths <= 4).nonzero().flatten().tolist())
    assert torch.allclose(loss, reference.catalogue_softmax(hidden, table, target))


def test_a_norm_that_cancels_is_not_underestimated() -> None:
    """Two positions whose gradients are opposite: what is left is rounding, and must be bounded from above."""
    hidden = torch.randn(1, 1, 64).mul(8).repeat(1, 2, 1)
    hidden[:, 1] = -hidden[:, 0]
    table = torch.randn(50, 64) * 1e-6  # all scores alike, whatever the sign of h
    target = torch.tensor([[7, 7]])
    ids, values, weight = torch.zeros(1, 0).long(), torch.zeros(1, 0, 64), torch.ones(1, 2)
    _, log_total, _, (group,) = pieces.forward_users(hidden, table, target, 0, longest=64)
    norm = overlaps.squared_norms(group, hidden, table, target, log_total, weight, ids, values, 0)
    exact = reference.user_gradients(hidden.double(), table.double(), target, weight.double()).square().sum()
    assert norm >= exact


def test_gradients_of_hidden_flow_and_the_tables_do_not() -> None:
    hidden, table, target, weight, *_ = problem(4, 6, 11, 5)
    hidden.requires_grad_()
    table.requires_grad_()
    loss, _, _ = for_users(hidden, table, target)
    (found,) = torch.autograd.grad((loss * weight).sum(), hidden)
    (exact,) = torch.autograd.grad((reference.catalogue_softmax(hidden, table, target) * weight).sum(), hidden)
    assert torch.allclose(found, exact)
    assert not for_users(hidden.detach(), table, target)[0].requires_grad


@pytest.mark.full
def test_memory_of_items_times_positions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest thing kept is the table's own gradient; scratch does not grow with the catalogue."""
    monkeypatch.setattr(kept, "LIMIT", 1 << 20)
    sizes = []
    for items in (20_000, 200_000):
        workspace._held.clear()
        hidden, table, target, weight, *_ = problem(4, 50, items, 4, torch.float32)
        _, log_total, _, groups = pieces.forward_users(hidden, table, target, 0, longest=50)
        out = torch.zeros_like(table)
        pieces.add_groups_gradient(out, groups, hidden, table, target, log_total, weight, 0)
        sizes.append(sum(held.numel() for held in workspace._held.values()))
        assert torch.allclose(out, reference.user_gradients(hidden, table, target, weight).sum(0), atol=1e-5)
    assert sizes[1] <= pieces.PIECE + (1 << 20) // 4
