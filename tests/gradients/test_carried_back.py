"""What is computed of parameters alone is carried back user by user, where torch.vmap has a wrong rule or none, too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dprec.gradients.clipping import Clipping
from tests.one_micro_batch import add_clipped

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
BOUND = Clipping("auto-v", 0.3)
GRAPH = (torch.arange(36).view(6, 6) % 5 == 0).float()
COMPUTED: dict[str, Callable[[Tensor], Tensor]] = {
    "distances between rows": lambda table: torch.cdist(table, table.flip(0)),
    "a mean over a graph's neighbours": lambda table: torch.sparse.mm(GRAPH.to_sparse(), table),
    "the same by rows": lambda table: GRAPH.to_sparse_csr() @ table,
    "there and back": lambda table: table.to_sparse().to_dense() * 2,
    "a product": lambda table: table @ table,
}


class Reads(nn.Module):
    def __init__(self, computed: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 6, generator=torch.Generator().manual_seed(0)))
        self.out = nn.Linear(6, 1)
        self.computed = computed

    def losses(self, x: Tensor) -> Tensor:
        each: Tensor = self.out((x @ self.computed(self.table)).tanh()).squeeze(1)
        return each.square()


def clipped(model: Reads, users: Tensor) -> Tensor:
    parameters = dict(model.named_parameters())
    sums = {name: torch.zeros_like(p, dtype=torch.float64).detach() for name, p in parameters.items()}
    add_clipped(sums, parameters, model.losses, users, BOUND)
    return torch.cat([total.flatten() for total in sums.values()])


def plain(model: Reads, users: Tensor) -> Tensor:
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for user in users.split(1):
        own = torch.autograd.grad(model.losses(user).sum(), list(model.parameters()))
        gradient = torch.cat([part.to_dense().double().flatten() for part in own])
        total += gradient * BOUND.scale(gradient.norm())
    return total


@pytest.mark.parametrize("kind", COMPUTED)
def test_each_users_share_is_exact_and_within_the_bound(kind: str) -> None:
    torch.manual_seed(0)
    model, users = Reads(COMPUTED[kind]), torch.randn(9, 6)
    whole = clipped(model, users)
    assert (whole - plain(model, users)).norm() <= 1e-4 * BOUND.max_norm
    for user in range(len(users)):
        others = clipped(model, torch.cat([users[:user], users[user + 1 :]]))
        assert (whole - others).norm() <= BOUND.max_norm * (1 + 1e-4)
