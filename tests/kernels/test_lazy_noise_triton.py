"""The kernel against the reference, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from dprec_kernels import reference
from dprec_kernels.row_noise import RowNoise, row_noise
from dprec_kernels.tables import Tables
from tests.kernels.interpreter import DEVICES

pytestmark = pytest.mark.full

SOURCE = RowNoise(seed=1 << 100 | 77, stream=3, step=2**31 - 2)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("count", "width", "decays"), [(5, 8, False), (1, 1, True), (30, 7, False), (3, 130, True)])
def test_rows_equal_the_reference(kernels: ModuleType, count: int, width: int, decays: bool, device: str) -> None:
    table, rows = torch.randn(50, width), torch.randperm(50)[:count].sort()[0]
    std, mean = torch.rand(count), torch.rand(count) if decays else torch.ones(count)
    exact = table.clone()
    reference.lazy_noise(exact, rows, std, mean, row_noise(SOURCE.seed, 3, rows, SOURCE.step, width))
    found, given = table.to(device), mean.to(device) if decays else None
    kernels.lazy_noise(found, rows.to(device), std.to(device), SOURCE, given)
    assert torch.allclose(found.cpu(), exact, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_outside_of_the_mask_stay(kernels: ModuleType, device: str) -> None:
    """They may repeat: only the first read of a row pays what the row owes."""
    table, rows, std = torch.randn(9, 70), torch.tensor([1, 1, 1, 4, 6, 6, 8]), torch.rand(7)
    owes = torch.tensor([True, False, False, False, True, False, True])
    exact = table.clone()
    noise = row_noise(SOURCE.seed, 3, rows[owes], SOURCE.step, 70)
    reference.lazy_noise(exact, rows[owes], std[owes], torch.ones(3), noise)
    found = table.to(device)
    kernels.lazy_noise(found, rows.to(device), std.to(device), SOURCE, None, owes.to(device))
    assert torch.allclose(found.cpu(), exact, atol=1e-6)
    assert torch.equal(found.cpu()[[0, 2, 3, 4, 5, 7]], table[[0, 2, 3, 4, 5, 7]])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decays", [False, True])
def test_rows_of_several_tables_equal_the_reference(kernels: ModuleType, decays: bool, device: str) -> None:
    """Of any width, each with a stream of its own; a table that nobody reads, and rows outside of the mask, stay."""
    each = [torch.randn(9, 8), torch.randn(5, 130), torch.randn(4, 3), torch.randn(7, 1)]
    which, rows = torch.tensor([0, 0, 0, 1, 1, 3, 3, 3]), torch.tensor([1, 1, 8, 0, 4, 2, 3, 6])
    owes = torch.tensor([True, False, True, False, True, True, True, False])
    std, mean = torch.rand(8), torch.rand(8) if decays else torch.ones(8)
    tables = Tables.of([table.to(device) for table in (own.clone() for own in each)])
    for place, exact in enumerate(each):
        there = owes & (which == place)
        noise = row_noise(SOURCE.seed, SOURCE.stream + place, rows[there], SOURCE.step, exact.shape[1])
        reference.lazy_noise(exact, rows[there], std[there], mean[there], noise)
    given = (which.to(device), rows.to(device), std.to(device), SOURCE, mean.to(device) if decays else None)
    kernels.of_tables(tables, *given, owes.to(device))
    for exact, found in zip(each, tables.each, strict=True):
        assert torch.allclose(found.cpu(), exact, atol=1e-6)
