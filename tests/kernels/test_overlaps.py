"""The users' softmaxes: norms from overlaps, gradients kept and computed again, against gradients that are built."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dprec_kernels import reference
from dprec_kernels.catalogue_softmax import for_users, overlaps, pieces, users
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


@pytest.fixture(params=[0, 1 << 18, 1 << 26], ids=["none kept", "some kept", "all kept"])
def limit(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(pieces, "LIMIT", request.param)
    return int(request.param)


@pytest.mark.parametrize(
    ("count", "length", "items", "dim"), [(6, 9, 23, 5), (1, 1, 2, 1), (3, 63, 50, 60), (40, 3, 7, 4), (90, 5, 9000, 8)]
)
def test_norms_sums_and_gradients_are_those_of_the_reference(
    limit: int, count: int, length: int, items: int, dim: int
) -> None:
    hidden, table, target, weight, ids, values = problem(count, length, items, dim)
    exact = reference.user_gradients(hidden, table, target, weight)
    dirty = hidden.masked_fill((target == 0).unsqueeze(-1), float("nan"))  # nobody may look at padding
    loss, slope, found = users.forward(dirty, table, target, 0, longest=length)
    assert torch.allclose(loss, reference.catalogue_softmax(hidden, table, target))
    assert (slope[target == 0] == 0).all()
    norms = overlaps.squared_norms(found, weight, ids, values)
    whole = built(hidden, table, target, weight, ids, values).flatten(1).square().sum(1)
    assert torch.allclose(norms, whole, rtol=1e-10)
    out = torch.zeros_like(table)
    found.add_gradient(out, weight)
    assert torch.allclose(out, exact.sum(0), atol=1e-11)
    chosen = slice(count // 2, count)
    own = torch.full_like(exact[chosen], 7.0)  # it is overwritten
    found.write_gradients(own, chosen, weight)
    assert torch.allclose(own, exact[chosen], atol=1e-12)
    lost = torch.arange(count) == 0
    found.forget(lost)
    found.add_gradient(out.zero_(), weight)
    assert torch.allclose(out, exact[1:].sum(0), atol=1e-11)


def test_products_are_kept_for_short_histories_alone() -> None:
    hidden, table, target, *_ = problem(8, 9, 23, 5)
    assert users.forward(hidden, table, target, 0, longest=8)[2].products is None
    assert users.forward(hidden, table, target, 0, longest=9)[2].products is not None


SIZES = [(3417, 50, 64), (9000, 8, 32), (500, 13, 24)]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("items", "length", "dim"), SIZES)
def test_a_user_has_the_same_bits_in_any_company(
    items: int, length: int, dim: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept or computed again, in whatever pass; users 0 to 30 stand behind, as whoever fills a batch up."""
    hidden, table, *others = problem(140, length, items, dim, torch.float32)
    table, everybody = 0.3 * table, [hidden, *others]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        shares = []
        for bytes_kept in (1 << 26, 0):
            monkeypatch.setattr(pieces, "LIMIT", bytes_kept)
            for company in ([], [*range(40, 57)], [*range(50, 139)]):
                order = [*company, 35, *range(31)]
                hidden, target, weight, ids, values = (each[order] for each in everybody)
                loss, slope, found = users.forward(hidden, table, target, 0, longest=dim)
                norms, own = overlaps.squared_norms(found, weight, ids, values), torch.empty(1, items, dim)
                found.write_gradients(own, slice(len(company), len(company) + 1), weight)
                shares.append([each[len(company)].clone() for each in (loss, slope, norms)] + [own])
        assert all(torch.equal(one, other) for share in shares for one, other in zip(share, shares[0], strict=True))
    finally:
        torch.set_num_threads(before)


def test_a_norm_that_cancels_is_not_underestimated() -> None:
    """Two positions whose gradients are opposite: what is left is rounding, and must be bounded from above."""
    hidden = torch.randn(1, 1, 64).mul(8).repeat(1, 2, 1)
    hidden[:, 1] = -hidden[:, 0]
    table = torch.randn(50, 64) * 1e-6  # all scores alike, whatever the sign of h
    target = torch.tensor([[7, 7]])
    ids, values, weight = torch.zeros(1, 0).long(), torch.zeros(1, 0, 64), torch.ones(1, 2)
    _, _, found = users.forward(hidden, table, target, 0, longest=64)
    norm = overlaps.squared_norms(found, weight, ids, values)
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
    monkeypatch.setattr(pieces, "LIMIT", 1 << 20)
    sizes = []
    for items in (20_000, 200_000):
        workspace._held.clear()
        hidden, table, target, weight, *_ = problem(4, 50, items, 4, torch.float32)
        _, _, found = users.forward(hidden, table, target, 0, longest=50)
        out = torch.zeros_like(table)
        found.add_gradient(out, weight)
        sizes.append(sum(held.numel() for held in workspace._held.values()))
        assert torch.allclose(out, reference.user_gradients(hidden, table, target, weight).sum(0), atol=1e-5)
    assert sizes[1] <= 3 * pieces.PIECE
