"""Sums of the rows of several tables, by the kernel and its reference, are those of a loop over reads."""

from __future__ import annotations

import math
from itertools import accumulate
from types import ModuleType

import pytest
import torch
from torch import Tensor

from dprec_kernels.row_sums import Part, reference, row_sums
from tests.kernels.interpreter import DEVICES

pytestmark = pytest.mark.full

SHAPES = ((7, 2, 1), (5, 2, 150), (4, 3, 64), (3, 1, 3))  # of each table: rows, a user's reads, width
USERS = (5, 1, 8)  # of each micro-batch
STARTS = [0, *accumulate(rows for rows, _, _ in SHAPES)]


def made(users: tuple[int, ...]) -> tuple[list[Part], list[tuple[int, int, int, int]]]:
    """Return parts, and of every read the row, among those of all tables, and its part, user and column."""
    parts, reads, numbers = [], [], [n * width for _, n, width in SHAPES]
    for number, count in enumerate(users):
        left_out = torch.arange(1, min(count, 2))
        scales = torch.rand(count).index_fill_(0, left_out, 0.0)
        whole = torch.randn(count, sum(numbers)).index_fill_(0, left_out, math.nan)
        own = zip(whole.split(numbers, 1), SHAPES, strict=True)
        values = [each.view(count, n, width) for each, (_, n, width) in own]  # with gaps between users
        values[1] = values[1].transpose(1, 2).contiguous().transpose(1, 2)  # numbers of a read lie apart
        values[2] = values[2][:, :1].expand(values[2].shape)  # as a bag's reads share a gradient
        parts.append(Part(values, scales))
        ids = [torch.randint(0, rows - 1, (count, n)) for rows, n, _ in SHAPES]
        rows = torch.cat([each + start for each, start in zip(ids, STARTS, strict=False)], 1)
        reads += [(int(row), number, u, c) for u, line in enumerate(rows) for c, row in enumerate(line)]
    return parts, reads


def summed(parts: list[Part], reads: list[tuple[int, int, int, int]], rows: list[int]) -> Tensor:
    """The truth, a read at a time."""
    columns = [(table, n) for table, (_, count, _) in enumerate(SHAPES) for n in range(count)]
    tables = [max(t for t, start in enumerate(STARTS) if start <= row) for row in rows]
    totals = [torch.zeros(SHAPES[table][2], dtype=torch.float64) for table in tables]
    for row, number, user, column in reads:
        scale, (table, n) = float(parts[number].scales[user]), columns[column]
        if row in rows and scale:
            totals[rows.index(row)] += parts[number].values[table][user, n].double() * scale
    return torch.cat(totals)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("users", [USERS, (40,), (150,)])  # so that no, some and all tables are read often
def test_sums_are_those_of_a_loop(kernels: ModuleType, users: tuple[int, ...], device: str) -> None:
    torch.manual_seed(1)
    parts, reads = made(users)
    rows = [row for row in range(STARTS[-1]) if row not in (0, 8, 9)]  # each table's last one is read by nobody
    counts = [6, 3, 4, 3]
    found, order = torch.tensor([row for row, *_ in reads]).sort(stable=True)
    starts, stops = (torch.searchsorted(found, torch.tensor(rows), right=right) for right in (False, True))
    exact = summed(parts, reads, rows)
    there = [Part([each.to(device) for each in part.values], part.scales.to(device)) for part in parts]
    given = [each.to(device) for each in (order, starts, stops)]
    for path in (reference, kernels):
        for dtype in (torch.float32, torch.float64):
            sums = path.row_sums(there, *given, counts, dtype)
            assert sums.dtype == dtype
            close = 1e-7 if dtype == torch.float32 else 1e-13
            assert torch.allclose(sums.cpu().double(), exact, rtol=close, atol=1e-13)


def test_no_rows_are_no_numbers() -> None:
    none = torch.zeros(0, dtype=torch.int64)
    part = Part([torch.ones(1, 2, 3)], torch.ones(1))
    assert row_sums([part], torch.arange(2), none, none, [0], torch.float32).tolist() == []
    part = Part([torch.ones(2, 0, 3)], torch.ones(2))
    assert row_sums([part], none, none.new_zeros(1), none.new_zeros(1), [1], torch.float32).tolist() == [0.0] * 3
