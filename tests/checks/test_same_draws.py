"""Models that draw random numbers for each user, position and item are no models in which users touch each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Gamma, Normal

from dprec.checks.same_draws import SameDraws, drawn
from dprec.data import SequenceBatch
from dprec.errors import UserError
from tests.privacy.private_steps import look_at
from tests.zoo.recommenders import ITEMS, Zoo

DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "gumbel_softmax": lambda h: F.gumbel_softmax(h, tau=0.7),
    "rrelu": lambda h: F.rrelu(h, training=True),
    "nn.RReLU": lambda h: nn.RReLU().train()(h),
    "Normal": lambda h: Normal(h, 1.0).rsample(),
    "Gamma": lambda h: Gamma(F.softplus(h) + 0.1, 1.0).rsample(),
    "randn_like": lambda h: h + torch.randn_like(h),
    "rand": lambda h: h * torch.rand(h.shape),
    "normal_": lambda h: h + torch.empty_like(h).normal_(std=2.0),
    "normal": lambda h: h + torch.normal(0.0, 2.0, h.shape),
    "exponential_": lambda h: h * torch.empty_like(h).exponential_(),
    "bernoulli": lambda h: h * torch.bernoulli(torch.full_like(h, 0.6)),
    "bernoulli_": lambda h: h * torch.empty_like(h).bernoulli_(0.6),
    "randint": lambda h: h * torch.randint(1, 5, h.shape),
    "randint_like": lambda h: h * torch.randint_like(h, 1, 5),
    "random_": lambda h: h * torch.empty_like(h).random_(1, 5),
    "multinomial": lambda h: h * torch.multinomial(h.detach().flatten(0, 1).softmax(-1), 1).view(*h.shape[:2], 1),
    "one for each position": lambda h: h * torch.rand(h.shape[:2]).unsqueeze(2),
    "time last": lambda h: h + torch.randn(len(h), h.shape[2], h.shape[1]).mT,
    "of pairs of positions": lambda h: torch.randn(len(h), h.shape[1], h.shape[1]).tril() @ h,
    "flattened": lambda h: h + torch.randn(h.shape[0] * h.shape[1], h.shape[2]).view(h.shape),
    "for all users": lambda h: h + torch.randn(h.shape[1:]),
}


class Drawing(Zoo):
    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.draw = draw

    def encode(self, history: Tensor) -> Tensor:
        return self.mix(self.draw(self.embedding(history)))


def of_lengths(*lengths: int) -> SequenceBatch:
    rows = torch.randint(1, ITEMS, (len(lengths), max(lengths) + 1), generator=torch.Generator().manual_seed(1))
    history, targets = rows[:, :-1].clone(), rows[:, 1:].clone()
    for row, length in enumerate(lengths):
        history[row, length:] = targets[row, length:] = 0
    return SequenceBatch(history, targets)


@pytest.mark.full
@pytest.mark.parametrize("name", DRAWS)
def test_draws_for_each_user_and_position_are_no_mixing(name: str) -> None:
    torch.manual_seed(0)
    look_at(Drawing(DRAWS[name]), of_lengths(9, 5, 2))


class Shuffled(Zoo):
    """Each user gets another's items, at random."""

    def encode(self, history: Tensor) -> Tensor:
        hidden = self.mix(self.embedding(history))
        return hidden + hidden[torch.randperm(len(hidden))]


class PairedByNoise(Zoo):
    """Every user meets every other, by random weights, in an operation that keeps the order."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        user = self.encode(batch.history)[:, 0]
        item = self.embedding(batch.targets[:, 0].clamp(min=1)) * torch.rand(len(user), 1)
        return -F.log_softmax(user.sum(1, keepdim=True) * item.sum(1), dim=1)[:, 0]


@pytest.mark.parametrize("model", [Shuffled, PairedByNoise])
def test_who_mixes_users_by_random_numbers_is_refused(model: Any) -> None:
    torch.manual_seed(0)
    with pytest.raises(UserError):
        look_at(model(), of_lengths(9, 5, 2))


@pytest.mark.parametrize("name", [name for name in DRAWS if "users" not in name])
def test_fixed_draws_are_as_spread_as_real_ones(name: str) -> None:
    """They need not have the law, but a check at numbers that are all alike would see little."""
    torch.manual_seed(0)
    hidden = torch.randn(50, 8, 6)
    with SameDraws():
        fixed = DRAWS[name](hidden)
    real = DRAWS[name](hidden)
    assert torch.isfinite(fixed).all()
    assert fixed.shape == real.shape
    assert fixed.dtype == real.dtype
    assert float(fixed.std()) == pytest.approx(float(real.std()), rel=0.35)
    assert float(fixed.mean()) == pytest.approx(float(real.mean()), abs=0.35 * float(real.std()))


def test_a_number_follows_from_its_place_alone() -> None:
    whole = drawn(3, torch.Size([4, 9, 5]), torch.device("cpu"))
    assert torch.equal(drawn(3, torch.Size([2, 7, 5]), torch.device("cpu")), whole[:2, :7])
    assert len(whole.unique()) == whole.numel()
    assert not torch.equal(drawn(4, whole.shape, whole.device), whole)
    assert float(whole.min()) > 0
    assert float(whole.max()) < 1
