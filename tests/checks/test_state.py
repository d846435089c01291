"""What a model writes of its users to parameters and buffers would be released without noise: refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dprec.checks.state import checksum
from dprec.errors import MixedUsers, UserError
from tests.checks.test_loading import Bag, one, train


class Hooked(Bag):
    """Writes before its losses are asked for."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.table.weight.data[1] = float(batch[0].events.float().mean())


def test_what_a_hook_writes_before_the_step_is_found() -> None:
    with pytest.raises(MixedUsers, match="table.weight"):
        train(Hooked(), one)


class Freezes(Bag):
    start = 0

    def losses(self, batch: Any) -> Tensor:
        loss = super().losses(batch)
        if self.global_step >= self.start:
            self.out.weight.requires_grad_(False)
        return loss


@pytest.mark.parametrize("start", [0, 2])
def test_freezing_inside_losses_is_refused_in_one_line(start: int) -> None:
    model = Freezes()
    model.start = start
    with pytest.raises(UserError, match=r"'out.weight' is frozen while training: set requires_grad before"):
        train(model, one)
    assert model.global_step == start


def test_a_checksum_sees_every_bit() -> None:
    torch.manual_seed(0)
    for shape, dtype in (
        ((7, 3), torch.float32),
        ((5,), torch.bfloat16),
        ((2, 9), torch.int64),
        ((20_000,), torch.bool),
    ):
        x = torch.randint(0, 2, shape).to(dtype)
        for place in range(0, x.numel(), max(1, x.numel() // 7)):
            y = x.clone()
            y.view(-1)[place] = 1 - x.view(-1)[place].to(torch.int64)
            assert checksum(y) != checksum(x)
    x = torch.randn(90, 4)
    assert checksum(x.mT) == checksum(x.mT.contiguous())
    assert checksum(torch.zeros(())) != checksum(torch.ones(()))
