"""Strategies for tables in a script: rows are stepped by themselves where torch's optimizer takes them, else whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec import private
from dprec.models.learning.optimizers import SGD
from dprec.sparsity import AdaFEST
from tests.training.scripts import take

SIZES = (50, 200, 7)


class Tables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.tables = nn.ModuleList(nn.Embedding(size, 4) for size in SIZES)
        self.top = nn.Linear(4 * len(SIZES), 1)

    def losses(self, ids: Tensor) -> Tensor:
        read = torch.cat([table(ids[:, place]) for place, table in enumerate(self.tables)], 1)
        return (self.top(read).squeeze(1) - 1).square()


def trained(kind: Any, **options: Any) -> Tables:
    draw, model = torch.Generator().manual_seed(0), Tables()
    users = torch.stack([torch.randint(size, (120,), generator=draw) for size in SIZES], 1)
    loader = {"unit": "record", "sampling_seed": 5, "max_users": 9}
    settings: Any = {"epsilon": 6, "noise_seed": 2, "sparsity": AdaFEST(), "loader": loader}
    take(private(model, kind(model.parameters(), lr=0.5, **options), users, expected_batch=20, steps=5, **settings))
    return model


@pytest.mark.parametrize(
    ("kind", "options"), [(torch.optim.SGD, {}), (torch.optim.SGD, {"weight_decay": 0.1}), (torch.optim.Adam, {})]
)
def test_torchs_own_optimizers_step_tables(kind: Any, options: Any) -> None:
    """Plain SGD takes rows; with a decay, or by Adam, gradients are made whole, rows without one at 0."""
    rowwise, moved = trained(SGD), trained(kind, **options)
    assert all(bool(p.isfinite().all()) for p in moved.parameters())
    same = [torch.allclose(a, b, atol=1e-6) for a, b in zip(rowwise.parameters(), moved.parameters(), strict=True)]
    assert all(same) == (kind is torch.optim.SGD and not options)
