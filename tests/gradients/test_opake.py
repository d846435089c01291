"""Side by side with Opake's `clipped_grad`: torch.func on each user beside the tape, on tied models."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from dprec.gradients.clipping import Clipping
from tests.one_micro_batch import add_clipped

pytestmark = pytest.mark.full

clipping = pytest.importorskip("opake.dpsgd.clipping")

USERS, ITEMS, LENGTH, DIM = 6, 11, 5, 8


class Tied(nn.Module):
    """A table that is read and that scores, around some layers."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.items = nn.Embedding(ITEMS, DIM)
        self.positions = nn.Parameter(torch.randn(LENGTH - 1, DIM))
        self.layers = nn.ModuleList(layers)

    def forward(self, history: Tensor) -> Tensor:
        x = self.items(history) + self.positions
        for layer in self.layers:
            x = layer(x)
        return x @ self.items.weight.T


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(DIM, 2, 12, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, src_mask=nn.Transformer.generate_square_subsequent_mask(LENGTH - 1))


def losses_of(logits: Tensor, history: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), history[:, 1:], reduction="none").sum(1)


@pytest.mark.parametrize(
    "layers", [[lambda: nn.Linear(DIM, DIM), nn.GELU], [Attends, Attends]], ids=["mixed", "attends"]
)
def test_the_clipped_sum_is_that_of_opake(layers: list[type[nn.Module]]) -> None:
    torch.manual_seed(0)
    model = Tied(*(make() for make in layers))
    parameters = dict(model.named_parameters())
    history = torch.randint(ITEMS, (USERS, LENGTH))

    def loss_of_one(values: dict[str, Tensor], own: Tensor) -> Tensor:
        own = own.unsqueeze(0)
        return losses_of(functional_call(model, values, (own[:, :-1],)), own).sum()

    values = {name: p.detach() for name, p in parameters.items()}
    sums = {name: torch.zeros_like(p).detach() for name, p in parameters.items()}
    users = add_clipped(sums, parameters, lambda b: losses_of(model(b[:, :-1]), b), history, Clipping("flat", 1.0))
    norm = float(users.norms.median())
    sums = {name: torch.zeros_like(p).detach() for name, p in parameters.items()}
    add_clipped(sums, parameters, lambda b: losses_of(model(b[:, :-1]), b), history, Clipping("flat", norm))
    clipped, state = clipping.clipped_grad(loss_of_one, clipping_norm=norm)
    found, _ = clipped(values, history, state=state)
    wanted = getattr(found, "pytree", found)
    size = torch.cat([total.flatten() for total in sums.values()]).norm()
    for name, total in sums.items():
        assert (wanted[name] - total).norm() <= 1e-5 * size, name
