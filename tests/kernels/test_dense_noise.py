"""A dense step against the reference, and its law."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from dprec_kernels import normals, reference
from dprec_kernels.dense_noise import dense_noise
from dprec_kernels.row_noise import RowNoise

SOURCE = RowNoise(seed=77, stream=3, step=12)


@pytest.mark.parametrize(
    ("piece", "touched", "std", "dtype"),
    [
        (1, 9, 0.7, torch.float32),
        (60, 40, 0.7, torch.float64),
        (60, 1, 0.7, torch.float32),
        (1 << 16, 0, 0.7, torch.float32),
        (1 << 16, 9, 0.0, torch.float64),
    ],
)
def test_a_step_equals_the_reference(
    monkeypatch: pytest.MonkeyPatch, piece: int, touched: int, std: float, dtype: torch.dtype
) -> None:
    monkeypatch.setattr(normals, "PIECE", piece)
    table, rows = torch.randn(40, 5, dtype=dtype), torch.randperm(40)[:touched].sort()[0]
    values, drawn = torch.randn(touched, 5, dtype=dtype), SOURCE(torch.empty(40, 5, dtype=dtype), torch.arange(40))
    exact, found = table.clone(), torch.nn.Parameter(table.clone())
    reference.dense_noise(exact, std, drawn, -0.3, 0.9, rows, values)
    dense_noise(found, std, SOURCE, alpha=-0.3, keep=0.9, rows=rows, values=values)
    assert torch.allclose(found, exact, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=1e-6)


def test_every_number_gets_noise_of_its_own() -> None:
    table = torch.ones(5000, 33)
    dense_noise(table, 2.0, SOURCE, alpha=-0.5)
    drawn = (table - 1).flatten()
    assert stats.kstest(drawn.double().numpy(), "norm").pvalue > 1e-3
    assert len(drawn.unique()) > 0.9 * len(drawn)


def test_a_part_of_a_wider_table_may_be_stepped() -> None:
    wide = torch.zeros(300, 10)
    dense_noise(wide[:, 2:7], 1.0, SOURCE)
    assert (wide[:, 2:7] != 0).all()
    assert not wide[:, :2].any()
    assert not wide[:, 7:].any()
