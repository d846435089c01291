"""A model that is looked at in one mode and trained in another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dprec import private
from dprec.errors import UserError


class Mean(nn.Module):
    """Keeps a running mean where it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, h: Tensor) -> Tensor:  # (B, 3, T)
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(h.mean((0, 2)), 0.5)
        return h


class Model(nn.Module):
    def __init__(self, keep: nn.Module) -> None:
        super().__init__()
        self.keep, self.map, self.out = keep, nn.Linear(4, 3), nn.Linear(3, 1)

    def losses(self, x: Tensor) -> Tensor:  # (B, T, 4)
        h = self.keep(x.mT[:, :3]).mT
        return self.out(torch.tanh(h) + self.map(x)).squeeze(2).square().mean(1)


KEEPS: dict[str, Callable[[], nn.Module]] = {
    "instance norm": lambda: nn.InstanceNorm1d(3, track_running_stats=True),
    "batch norm": lambda: nn.BatchNorm1d(3, affine=False),
    "buffer": Mean,
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Conv1d(3, 3, 1)),
}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("late", [0, 1, 4])
@pytest.mark.parametrize("keep", KEEPS)
def test_what_keeps_something_of_users_only_where_it_trains_is_refused_as_soon_as_it_does(keep: str, late: int) -> None:
    model = Model(KEEPS[keep]()).eval()  # as after an evaluation of the beginning
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = private(model, optimizer, torch.randn(60, 5, 4), steps=8, expected_batch=12, noise_multiplier=1.0)
    with pytest.raises(UserError, match=r"changes with the users' data|batch's own statistics|spectral_norm"):  # noqa: PT012
        for number, batch in enumerate(training):
            assert number <= late + 1
            training.step(batch)
            if number >= late:
                model.train()


def test_what_keeps_nothing_may_change_its_mode() -> None:
    model = Model(nn.Dropout(0.1)).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = private(model, optimizer, torch.randn(60, 5, 4), steps=4, expected_batch=12, noise_multiplier=1.0)
    for number, batch in enumerate(training):
        training.step(batch)
        model.train(number % 2 == 0)
    assert training.steps == 4
