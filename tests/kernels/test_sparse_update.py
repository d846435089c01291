"""Sums and steps of single rows against dense gradients in float64, their bits, and tables that lie in files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from dprec_kernels import reference
from dprec_kernels.row_noise import RowNoise
from dprec_kernels.sparse_update import SGD, step_rows, summed
from tests.kernels.files import FAR, mapped

DTYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5)]


def some(users: int, reads: int, items: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    table, rows = torch.randn(items, dim, dtype=dtype), torch.randint(0, items, (users, reads))
    return table, rows, torch.randn(users, reads, dim, dtype=dtype), torch.rand(users, dtype=dtype)


def step(table: Tensor, rows: Tensor, values: Tensor, rule: SGD, scales: Tensor | None = None) -> Tensor:
    """Step the rows that were read by the sums of their gradients, and return them."""
    scales = torch.ones(len(rows), dtype=values.dtype) if scales is None else scales
    read, sums = summed(rows, values, scales, table.dtype)
    step_rows(table, read, sums, rule)
    return read


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_equal_the_reference(decay: float, dtype: torch.dtype, tolerance: float) -> None:
    table, rows, values, scales = some(6, 7, 40, 5, dtype)
    touched = torch.zeros(40, dtype=torch.bool).index_fill_(0, rows.flatten(), True)
    before, gradient = table.clone(), reference.row_gradient(40, rows, values, scales)
    exact = reference.sgd(before.double(), gradient, 0.1, decay)
    found = step(table, rows, values, SGD(0.1, decay), scales)
    assert torch.equal(found, touched.nonzero().squeeze(1))
    assert torch.allclose(table[touched].double(), exact[touched], rtol=tolerance, atol=tolerance)
    assert torch.equal(table[~touched], before[~touched])


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_sums_equal_the_reference(dtype: torch.dtype, tolerance: float) -> None:
    _, rows, values, scales = some(6, 7, 40, 5, dtype)
    found, sums = summed(rows, values, scales, dtype)
    exact = reference.row_gradient(40, rows, values, scales)
    assert torch.equal(found, rows.unique())
    assert torch.allclose(sums.double(), exact[found], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("width", [5, 40_000])  # of which a row or two are drawn at once
def test_noise_of_a_step_is_added_to_the_gradient(width: int, dtype: torch.dtype, tolerance: float) -> None:
    table, rows = torch.randn(9, width, dtype=dtype), torch.tensor([0, 3, 4, 7, 8])
    gradient, source = torch.randn(5, width, dtype=dtype), RowNoise(seed=7, stream=2, step=3)
    normals = source(torch.empty(5, width, dtype=dtype), rows).double()
    exact = table.double()
    exact[rows] = reference.sgd(exact[rows], gradient.double() + 2.0 * normals, 0.1, 0.3)
    step_rows(table, rows, gradient, SGD(0.1, 0.3), 2.0, source)
    assert torch.allclose(table.double(), exact, rtol=tolerance, atol=tolerance)


def test_a_gradient_is_rounded_to_a_row_with_its_noise() -> None:
    """Neither gradient nor noise moves a weight of 1 by itself here; together they do."""
    table, rows, half = torch.ones(1, 4), torch.tensor([0]), 2.0**-25  # of what float32 has below 1

    def normals(out: Tensor, rows: Tensor) -> None:
        out.fill_(0.7)

    step_rows(table, rows, torch.full((1, 4), 0.7 * half), SGD(1.0), half, normals)
    assert (table < 1).all()


def test_rows_and_values_may_be_flat_or_deep() -> None:
    table, rows, values, _ = some(6, 4, 15, 3, torch.float64)
    exact = reference.sgd(table, reference.row_gradient(15, rows, values, torch.ones(6)), 0.5, 0.0)
    for shape in ((24,), (6, 4), (6, 2, 2), (1, 24)):
        stepped = torch.nn.Parameter(table.clone())
        step(stepped, rows.view(shape), values.view(*shape, 3), SGD(0.5))
        assert torch.allclose(stepped, exact, rtol=1e-12)


def test_a_value_that_a_bag_shares_is_not_copied() -> None:
    _, rows, values, scales = some(6, 4, 15, 3, torch.float32)
    shared = values[:, :1].expand(6, 4, 3)
    once, again = (summed(rows, each, scales)[1] for each in (shared, shared.contiguous()))
    assert torch.equal(once, again)


def test_a_user_of_scale_zero_adds_nothing_but_the_row_is_stepped() -> None:
    table, values = torch.ones(6, 2), torch.ones(2, 2, 2)
    values[1] = float("inf")
    rows = torch.tensor([[1, 2], [2, 4]])
    found = step(table, rows, values, SGD(1.0, decay=0.5), torch.tensor([1.0, 0.0]))
    assert found.tolist() == [1, 2, 4]
    assert table[:, 0].tolist() == [1, -0.5, -0.5, 1, 0.5, 1]


def test_the_same_call_gives_the_same_bits() -> None:
    _, rows, values, scales = some(200, 30, 50, 16, torch.float32)
    results = [summed(rows, values, scales)[1] for _ in range(3)]
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_tables_of_more_than_31_bits_of_numbers(tmp_path: Path) -> None:
    table, rows = mapped(tmp_path / "table", FAR + 10, 8), torch.tensor([[FAR, 5], [FAR + 9, FAR]])
    found = step(table, rows, torch.ones(2, 2, 8), SGD(1.0, decay=0.1))
    assert found.tolist() == [5, FAR, FAR + 9]
    assert table[found, 0].tolist() == [-1.0, -2.0, -1.0]
    assert not table[FAR - 1].any()
