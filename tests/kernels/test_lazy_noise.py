"""Owed noise against the reference, its law, and tables that lie in files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scipy import stats

from dprec_kernels import normals, reference
from dprec_kernels.lazy_noise import lazy_noise
from dprec_kernels.row_noise import RowNoise, row_noise
from tests.kernels.files import FAR, mapped

SOURCE = RowNoise(seed=77, stream=3, step=12)


@pytest.mark.parametrize(
    ("count", "width", "piece", "decays", "dtype"),
    [
        (5, 8, 1, True, torch.float32),
        (1, 1, 60, False, torch.float64),
        (30, 7, 60, True, torch.float64),
        (40, 20, 1 << 16, False, torch.float32),
    ],
)
def test_rows_equal_the_reference(
    monkeypatch: pytest.MonkeyPatch, count: int, width: int, piece: int, decays: bool, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(normals, "PIECE", piece)
    table, rows = torch.randn(50, width, dtype=dtype), torch.randperm(50)[:count].sort()[0]
    std, mean = torch.rand(count).double(), torch.rand(count).double() if decays else torch.ones(count)
    exact, found = table.clone(), torch.nn.Parameter(table.clone())
    reference.lazy_noise(exact, rows, std.to(dtype), mean.to(dtype), row_noise(77, 3, rows, 12, width).to(dtype))
    lazy_noise(found, rows, std, SOURCE, mean=mean if decays else None)
    assert torch.allclose(found, exact, rtol=1e-6, atol=1e-7)


def test_every_row_gets_normals_of_its_own_size() -> None:
    table, rows = torch.zeros(3000, 64), torch.arange(0, 3000, 2)
    std = torch.rand(1500) + 0.5
    lazy_noise(table, rows, std, SOURCE)
    assert stats.kstest((table[rows] / std[:, None]).double().flatten().numpy(), "norm").pvalue > 1e-3
    assert not table[1::2].any()


def test_rows_that_owe_nothing_stay() -> None:
    table = torch.randn(9, 4)
    before, rows = table.clone(), torch.tensor([2, 3, 8])
    lazy_noise(table, rows, torch.tensor([0.0, 1.0, 0.0]), SOURCE)
    assert torch.equal(table[[2, 8]], before[[2, 8]])
    assert not torch.equal(table[3], before[3])


def test_rows_outside_of_the_mask_stay_and_may_repeat() -> None:
    table, owes = torch.zeros(9, 4), torch.tensor([True, False, False, True])
    lazy_noise(table, torch.tensor([2, 2, 5, 7]), torch.ones(4), SOURCE, where=owes)
    assert torch.equal(table[[2, 7]], row_noise(77, 3, torch.tensor([2, 7]), 12, 4))
    assert not table[[0, 1, 3, 4, 5, 6, 8]].any()


def test_a_table_of_more_than_31_bits_of_numbers(tmp_path: Path) -> None:
    table, rows = mapped(tmp_path / "table", FAR + 10, 8), torch.tensor([0, 1000, FAR, FAR + 9])
    lazy_noise(table, rows, torch.ones(4), SOURCE)
    assert torch.equal(table[rows], row_noise(77, 3, rows, 12, 8))
    assert not table[999].any()
    assert not table[FAR - 1 : FAR].any()
