"""No user's gradient is built of parts of a parameter, nor of a whole table beside rows that are read of it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dprec.gradients.clipping import batch_gradients
from dprec.gradients.contributions.placed import in_parts
from dprec.gradients.norms import squared_norms, to_be_built


def losses(table: nn.Parameter, experts: nn.Parameter, x: Tensor, functions: int) -> Tensor:
    ids = (x[:, :2] > 0).long() + 3
    for place in range(2):
        x = x + (x @ experts[place][1].t()).tanh() @ experts[place, 0]
    for _ in range(functions):
        table = table.relu() + 0.1  # type: ignore[assignment]
    return (x @ table.T).logsumexp(1) + (table[ids] * x.unsqueeze(1)).sin().sum((1, 2))


@pytest.mark.parametrize("functions", [0, 1, 2])
def test_nothing_is_built(functions: int) -> None:
    torch.manual_seed(0)
    table, experts = nn.Parameter(torch.randn(9, 4)), nn.Parameter(torch.randn(2, 2, 4, 4))
    x = torch.randn(16, 4)
    found = batch_gradients({"table": table, "experts": experts}, lambda x: losses(table, experts, x, functions), x)
    sums = {"table": torch.zeros(9, 4).double(), "experts": torch.zeros(2, 2, 4, 4).double()}
    uses, totals, parts = in_parts(found.contributions, sums)
    assert to_be_built(uses) == []
    assert len(parts) == 4
    norms = torch.stack([squared_norms(own, found.batch_size, totals[name].shape) for name, own in uses.items()]).sum(0)
    for user in range(len(x)):
        own = losses(table.double(), experts.double(), x[user : user + 1].double(), functions).sum()
        each = torch.autograd.grad(own, [table, experts])
        assert norms[user] == pytest.approx(sum(float(e.double().square().sum()) for e in each), rel=1e-5)
