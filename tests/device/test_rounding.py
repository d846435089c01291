"""Terms that cancel, on a GPU's path: neither a share nor what others get of theirs hangs on how they are added up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.gradients.clipping import Clipping
from dprec.models import DPFormer
from dprec.noise.gaussian import most_users, rounding
from tests.device.pretend import DEVICE
from tests.one_micro_batch import add_clipped

pytestmark = [pytest.mark.usefixtures("by_kernels"), pytest.mark.full]
kernels = pytest.mark.interpreted if DEVICE.type == "pretend" else pytest.mark.full
LOST = 0.4999 * 2.0**-23  # added to 1 in float32, it is lost; more than one, added first, are not
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "bias": lambda: nn.Linear(1, 1),
    "weight": lambda: nn.Linear(1, 1, bias=False),
    "norm": lambda: nn.LayerNorm(1),
}


def shares(name: str, pulls: Tensor) -> float:
    """Return the clipped sum of users whose gradients of one number are these, position by position (B, T)."""
    model, pull = LAYERS[name]().to(DEVICE), pulls.unsqueeze(2)
    x = torch.ones_like(pull) if name == "weight" else torch.zeros_like(pull)
    batch = SequenceBatch(x.to(DEVICE), pull.to(DEVICE))
    parameters = dict(model.named_parameters())
    sums = {n: torch.zeros(p.shape, dtype=torch.float64, device=DEVICE) for n, p in parameters.items()}
    add_clipped(sums, parameters, lambda b: (model(b.history) * b.targets).sum((1, 2)), batch, Clipping("auto-v"))
    return float(sums["weight" if name == "weight" else "bias"].cpu())


@kernels
@pytest.mark.parametrize("name", LAYERS)
def test_somebody_without_a_gradient_moves_others_by_no_more_than_noise_pays_for(name: str) -> None:
    users = 46
    one = torch.cat(
        [torch.zeros(15), torch.tensor([1.0]), torch.full((15,), LOST), torch.tensor([-0.942]), torch.zeros(16)]
    )
    others = one.repeat(users, 1) * torch.tensor([1.0, -1.0]).repeat(users // 2)[:, None]
    moved = shares(name, torch.cat([torch.zeros(1, len(one)), others])) - shares(name, others)
    assert abs(moved) <= rounding(most_users(users))


@kernels
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("left", [0.0575, 0.0623, 0.4, 0.5])
def test_a_user_alone_keeps_the_bound(name: str, left: float) -> None:
    pulls = torch.full((1, 64), LOST)
    pulls[0, 0], pulls[0, 32] = 1.0 + left + 64 * 2.0**-23, -(1.0 + 64 * 2.0**-23)
    assert abs(shares(name, pulls)) <= 1 + 1e-6


@kernels
def test_users_of_a_transformer_are_not_scaled_down_for_rounding() -> None:
    torch.manual_seed(0)
    model = DPFormer(60, dim=16, max_length=40).to(DEVICE)
    history = torch.randint(1, 60, (3, 40))
    batch = SequenceBatch(history.to(DEVICE), history.roll(-1, 1).to(DEVICE))
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    sums = {n: torch.zeros(p.shape, dtype=torch.float64, device=DEVICE) for n, p in parameters.items()}
    users = add_clipped(sums, parameters, model.losses, batch, Clipping("auto-v"))
    assert (users.scales * users.norms).cpu().tolist() == pytest.approx([1.0] * 3, abs=1e-4)
