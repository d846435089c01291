"""Squared norms against built gradients, one user at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dprec_kernels import reference, sample_norms
from dprec_kernels.sample_norms import pieces

# Relative. Inputs in bfloat16 are exact in float32, so what is left is the rounding of float32 sums.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-5}
SHORT, WHOLE = 1, 1 << 18  # numbers of a piece
LINEAR = {  # users, positions, outputs, inputs
    "odd sizes": ((3, 63, 60, 7), torch.float32, WHOLE),
    "odd sizes, user by user": ((3, 63, 60, 7), torch.bfloat16, SHORT),
    "sizes of a tile": ((5, 3, 64, 64), torch.float64, SHORT),
    "one position": ((2, 1, 60, 63), torch.bfloat16, WHOLE),
    "one number": ((1, 1, 1, 1), torch.float64, WHOLE),
    "nobody": ((0, 5, 4, 3), torch.float32, WHOLE),
    "no position": ((2, 0, 3, 4), torch.float64, SHORT),
}
ROWS = {  # users, reads, the shape of a row; items of the table
    "more reads than items": ((4, 63, 60), 30, torch.float32),
    "one item": ((4, 63, 60), 1, torch.bfloat16),
    "hardly a repeat": ((3, 20, 2, 3), 1000, torch.float64),
    "one number a row": ((2, 9), 30, torch.float32),
    "one read": ((1, 1, 1), 1, torch.float64),
}


@pytest.mark.parametrize("case", LINEAR)
def test_linear_equals_the_reference_in_both_forms(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    (users, length, outputs, inputs), dtype, piece = LINEAR[case]
    monkeypatch.setattr(pieces, "PIECE", piece)
    monkeypatch.setattr(pieces, "GRAM_PIECE", piece)
    left, right = torch.randn(users, length, outputs).to(dtype), torch.randn(users, length, inputs).to(dtype)
    for user in range(1, users):
        left[user, length // (2 * user) :] = 0  # where a shorter history is padded
    exact = reference.linear_norms(left, right)
    for gram_cost in (0, 1, 10**9):
        monkeypatch.setattr(pieces, "GRAM_COST", gram_cost)
        found = sample_norms.linear(left, right)
        assert found.dtype == torch.float64
        assert (found >= exact * (1 - TOLERANCE[dtype])).all()
        above = _allowance(left, right) if pieces.prefers_gram(length, outputs, inputs) else 0.0
        assert (found <= exact * (1 + TOLERANCE[dtype]) + above).all()


@pytest.mark.parametrize("apart", [0.0, 1e-6, 1e-4, 1e-2, 1.0])
@pytest.mark.parametrize(("length", "width"), [(2, 64), (14, 64), (1, 1024)])
def test_a_norm_is_not_below_the_truth_where_terms_cancel(length: int, width: int, apart: float) -> None:
    # All entries have one sign, so that roundings of a product add up.
    left, right = torch.rand(30, length, width), torch.rand(30, length, width)
    half = length // 2
    left[:, half : 2 * half] = -left[:, :half] * (1 + apart)
    right[:, half : 2 * half] = right[:, :half]
    assert pieces.prefers_gram(length, width, width)
    found, exact = sample_norms.linear(left, right), reference.linear_norms(left, right)
    assert (found >= exact).all()
    assert (found <= exact + 2 * _allowance(left, right)).all()


@pytest.mark.parametrize("case", ROWS)
def test_rows_equal_the_reference_whichever_are_merged(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    (users, reads, *rest), items, dtype = ROWS[case]
    ids, values = torch.randint(0, items, (users, reads)), torch.randn(users, reads, *rest).to(dtype)
    ids[1:, reads // 3 :] = 0  # padding reads a row too
    for few in (0, 4, 10**9):  # repeats merged alone, by their number, all rows merged
        monkeypatch.setattr(pieces, "FEW", few)
        found = sample_norms.rows(ids, values)
        assert found.dtype == torch.float64
        assert torch.allclose(found, reference.row_norms(ids, values), rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("shape", [(0, 5, 3), (2, 0, 3), (2, 5, 0)])
def test_nothing_was_read(shape: tuple[int, ...]) -> None:
    found = sample_norms.rows(torch.zeros(shape[:2], dtype=torch.long), torch.zeros(shape))
    assert found.tolist() == [0.0] * shape[0]


def test_repeats_that_cancel_leave_nothing() -> None:
    value = torch.randn(2, 1, 5)
    assert sample_norms.rows(torch.tensor([[3, 3], [3, 4]]), torch.cat([value, -value], 1))[0] == 0


def test_the_largest_id_costs_no_memory() -> None:
    ids = torch.tensor([[2**60, 1, 2**60]])
    assert sample_norms.rows(ids, torch.ones(1, 3, 1)).tolist() == [5.0]


@pytest.mark.parametrize("items", [1, 5, 1000])
@pytest.mark.parametrize("rest", [(), (6,)])
def test_a_value_that_all_reads_share_is_squared_once(items: int, rest: tuple[int, ...]) -> None:
    ids, one = torch.randint(0, items, (4, 7)), torch.randn(4, 1, *rest)
    shared = one.expand(4, 7, *rest)
    assert shared.stride(1) == 0
    assert torch.allclose(sample_norms.rows(ids, shared), reference.row_norms(ids, shared.contiguous()), rtol=1e-6)
    one[2] = torch.nan
    found = sample_norms.rows(ids, shared)
    assert found.isnan().tolist() == [False, False, True, False]


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="left"):
        sample_norms.linear(torch.zeros(2, 3, 4), torch.zeros(2, 5, 4))
    with pytest.raises(ValueError, match="ids"):
        sample_norms.rows(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 4, 1))


def _allowance(left: Tensor, right: Tensor) -> Tensor:
    terms = (left.double().norm(dim=2) * right.double().norm(dim=2)).sum(1)
    return pieces.GRAM_ROUNDINGS * torch.finfo(torch.promote_types(left.dtype, torch.float32)).eps * terms.square()
