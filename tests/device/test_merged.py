"""Sums of several tables, merged at once on a device, are what each is merged to alone."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from dprec.gradients.contributions.look_ups import Rows
from dprec.gradients.row_sum import RowSum, merge_together
from tests.device.pretend import DEVICE, LAUNCHED, interpreted

pytestmark = pytest.mark.full

SHAPES = {"a": (9, 4), "b": (20, 1), "c": (6, 7), "d": (12, 4)}
PADDING = {"b": (0,), "c": (2, 5)}
BATCHES = (5, 3)  # users of each micro-batch


def added(device: torch.device | str) -> dict[str, RowSum]:
    generator = torch.Generator().manual_seed(4)
    sums = {name: RowSum(torch.Size(shape), torch.float32, device) for name, shape in SHAPES.items()}
    for users in BATCHES:
        weight = torch.rand(users, generator=generator).index_fill_(0, torch.tensor([1]), 0.0).to(device)
        for place, (name, (rows, width)) in enumerate(SHAPES.items()):
            ids = torch.randint(0, rows, (users, 1 + place % 3), generator=generator)
            values = torch.randn(*ids.shape, width, generator=generator)
            sums[name].add(Rows(ids.to(device), values.to(device)), weight)
    return sums


@pytest.mark.parametrize("kernels", [False, pytest.param(True, marks=pytest.mark.interpreted)])
@pytest.mark.parametrize("wide", [False, True])
def test_sums_of_any_widths_are_those_of_each(wide: bool, kernels: bool) -> None:
    wanted = {name: torch.arange(1, rows, 2) for name, (rows, _) in SHAPES.items()} if wide else {}
    alone, together = added("cpu"), added(DEVICE)
    LAUNCHED.clear()
    with interpreted() if kernels else nullcontext():
        untouched = merge_together(together, PADDING, {name: rows.to(DEVICE) for name, rows in wanted.items()})
    assert ["row_sums_fwd_kernel"] * kernels == LAUNCHED
    missing = 0
    for name, total in alone.items():
        rows, values = total.merged()
        kept = values.any(1) & ~torch.isin(rows, torch.tensor(PADDING.get(name, ()), dtype=torch.int64))
        exact = torch.zeros(SHAPES[name]).index_copy_(0, rows[kept], values[kept])
        touched = torch.zeros(SHAPES[name][0], dtype=torch.bool).index_fill_(0, rows[kept], True)
        found = together[name].release()
        assert torch.equal(found[0].cpu(), wanted.get(name, rows[kept]))
        assert torch.allclose(found[1].cpu(), exact[found[0].cpu()], atol=1e-6)
        missing += int((~touched[wanted[name]]).sum()) if wide else 0
    assert int(untouched) == missing
