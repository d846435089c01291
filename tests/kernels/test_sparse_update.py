"""Steps of single rows against dense gradients in float64, their bits, and tables that lie in files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from dprec_kernels import normals
from dprec_kernels.row_noise import RowNoise
from dprec_kernels.sparse_update import SGD, reference, sparse_update, summed
from tests.kernels.files import FAR, mapped

SOURCE = RowNoise(seed=77, stream=3, step=12)
DTYPES = [(torch.float64, 1e-12), (torch.float32, 1e-5)]


def some(users: int, reads: int, items: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    table, rows = torch.randn(items, dim, dtype=dtype), torch.randint(0, items, (users, reads))
    return table, rows, torch.randn(users, reads, dim, dtype=dtype), torch.rand(users, dtype=dtype)


def drawn(rows: Tensor, width: int) -> Tensor:
    return SOURCE(torch.empty(len(rows), width, dtype=torch.float64), rows)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("piece", [1, 60, 1 << 16])
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_steps_equal_the_reference(
    monkeypatch: pytest.MonkeyPatch, decay: float, piece: int, dtype: torch.dtype, tolerance: float
) -> None:
    monkeypatch.setattr(normals, "PIECE", piece)
    table, rows, values, scales = some(6, 7, 40, 5, dtype)
    touched = torch.zeros(40, dtype=torch.bool).index_fill_(0, rows.flatten(), True)
    before, gradient = table.clone(), reference.gradient(40, rows, values, scales)
    gradient += 0.7 * drawn(torch.arange(40), 5)
    exact = reference.sgd(before.double(), gradient, 0.1, decay)
    found = sparse_update(table, rows, values, SGD(0.1, decay), scales=scales, std=0.7, source=SOURCE)
    assert torch.equal(found, touched.nonzero().squeeze(1))
    assert torch.allclose(table[touched].double(), exact[touched], rtol=tolerance, atol=tolerance)
    assert torch.equal(table[~touched], before[~touched])


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_equal_the_reference(weighted: bool, dtype: torch.dtype, tolerance: float) -> None:
    _, rows, values, scales = some(6, 7, 40, 5, dtype)
    found, sums = summed(rows, values, scales=scales if weighted else None, dtype=dtype)
    exact = reference.gradient(40, rows, values, scales if weighted else torch.ones_like(scales))
    assert torch.equal(found, rows.unique())
    assert torch.allclose(sums.double(), exact[found], rtol=tolerance, atol=tolerance)


def test_rows_and_values_may_be_flat_or_deep() -> None:
    table, rows, values, _ = some(6, 4, 15, 3, torch.float64)
    exact = reference.sgd(table, reference.gradient(15, rows, values, torch.ones(6)), 0.5, 0.0)
    for shape in ((24,), (6, 4), (6, 2, 2), (1, 24)):
        stepped = torch.nn.Parameter(table.clone())
        sparse_update(stepped, rows.view(shape), values.view(*shape, 3), SGD(0.5))
        assert torch.allclose(stepped, exact, rtol=1e-12)


def test_a_value_that_a_bag_shares_is_not_copied() -> None:
    table, rows, values, scales = some(6, 4, 15, 3, torch.float32)
    shared = values[:, :1].expand(6, 4, 3)
    once, again = table.clone(), table.clone()
    sparse_update(once, rows, shared, SGD(0.5), scales=scales)
    sparse_update(again, rows, shared.contiguous(), SGD(0.5), scales=scales)
    assert torch.equal(once, again)


def test_a_user_of_scale_zero_adds_nothing_but_the_row_is_stepped() -> None:
    table, values = torch.ones(6, 2), torch.ones(2, 2, 2)
    values[1] = float("inf")
    rows = torch.tensor([[1, 2], [2, 4]])
    found = sparse_update(table, rows, values, SGD(1.0, decay=0.5), scales=torch.tensor([1.0, 0.0]))
    assert found.tolist() == [1, 2, 4]
    assert table[:, 0].tolist() == [1, -0.5, -0.5, 1, 0.5, 1]


def test_noise_is_drawn_once_for_a_merged_row() -> None:
    table, rows = torch.zeros(2000, 32), torch.arange(2000).repeat(3, 1)
    sparse_update(table, rows, torch.zeros(3, 2000, 32), SGD(1.0), std=2.0, source=torch.Generator().manual_seed(0))
    assert stats.kstest((table / 2).double().flatten().numpy(), "norm").pvalue > 1e-3


def test_the_same_call_gives_the_same_bits() -> None:
    table, rows, values, scales = some(200, 30, 50, 16, torch.float32)
    results = []
    for _ in range(3):
        stepped = table.clone()
        source = torch.Generator().manual_seed(3)
        sparse_update(stepped, rows, values, SGD(0.1), scales=scales, std=0.1, source=source)
        results.append(stepped)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_tables_in_files_give_the_same_numbers(tmp_path: Path) -> None:
    table, rows, values, scales = some(40, 30, 200, 16, torch.float32)
    file = mapped(tmp_path / "table", 200, 16).copy_(table)
    for each in (table, file):
        sparse_update(each, rows, values, SGD(0.1), scales=scales, std=0.1, source=SOURCE)
    assert torch.equal(file, table)
    assert torch.equal(torch.from_file(str(tmp_path / "table"), size=3200).view(200, 16), table)


def test_tables_of_more_than_31_bits_of_numbers(tmp_path: Path) -> None:
    table, rows = mapped(tmp_path / "table", FAR + 10, 8), torch.tensor([[FAR, 5], [FAR + 9, FAR]])
    found = sparse_update(table, rows, torch.ones(2, 2, 8), SGD(1.0, decay=0.1))
    assert found.tolist() == [5, FAR, FAR + 9]
    assert table[found, 0].tolist() == [-1.0, -2.0, -1.0]
    assert not table[FAR - 1].any()


def test_what_does_not_fit_is_refused() -> None:
    table, rows, values = torch.zeros(5, 2), torch.tensor([[1, 3]]), torch.ones(1, 2, 2)
    with pytest.raises(ValueError, match="values"):
        sparse_update(table, rows, values[..., :1], SGD(1.0))
    with pytest.raises(ValueError, match="int64"):
        sparse_update(table, rows.int(), values, SGD(1.0))
    with pytest.raises(ValueError, match="scales"):
        sparse_update(table, rows, values, SGD(1.0), scales=torch.ones(2))
    with pytest.raises(ValueError, match="source"):
        sparse_update(table, rows, values, SGD(1.0), std=1.0)


def test_nobody_and_nothing() -> None:
    table, none = torch.ones(5, 2), torch.tensor([], dtype=torch.int64)
    assert sparse_update(table, none, torch.empty(0, 2), SGD(1.0)).tolist() == []
    assert sparse_update(table, none.view(3, 0), torch.empty(3, 0, 2), SGD(1.0)).tolist() == []
    assert torch.equal(table, torch.ones(5, 2))
