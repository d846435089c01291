"""The pretend device refuses what a GPU refuses, and counts what a GPU waits for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.device.pretend import DEVICE, counted


def here(*shape: int) -> torch.Tensor:
    return torch.ones(*shape).to(DEVICE)


REFUSED: dict[str, Callable[[], object]] = {
    "a tensor of the host": lambda: here(3) + torch.ones(3),
    "numpy": lambda: here(3).numpy(),
    "the device's ids in a tensor of the host": lambda: torch.ones(4)[torch.tensor([0]).to(DEVICE)],
    "the host's ids in a tensor of the device": lambda: here(4)[torch.tensor([0])],
    "writing by the host's ids": lambda: here(4).__setitem__(torch.tensor([0]), 1.0),
    "writing at the device's ids in the host": lambda: torch.ones(4).__setitem__(torch.tensor([0]).to(DEVICE), 1.0),
    "index_add_ of the host's values": lambda: here(4).index_add_(0, here(1).long(), torch.ones(1)),
    "a result of the host": lambda: torch.mm(here(2, 2), here(2, 2), out=torch.ones(2, 2)),
    "a generator of the host": lambda: here(3).normal_(generator=torch.Generator()),
    "a module that was left behind": lambda: nn.Linear(3, 2)(here(1, 3)),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_refuses_what_a_card_refuses(wrong: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=r"device|numpy|generator"):
        REFUSED[wrong]()


def test_takes_what_a_card_takes() -> None:
    table = here(4, 2)
    assert (table * torch.tensor(2.0)).sum().item() == 16  # a number of the host goes along with the launch
    assert table[[0, 1]].shape == (2, 2)
    assert table.cpu().numpy().sum() == 8
    assert torch.arange(3, device=DEVICE).tolist() == [0, 1, 2]
    table[torch.tensor([1, 2], device=DEVICE)] = 5.0
    assert table.sum().item() == 24
    assert torch.tensor([1.5], device="pretend").device == DEVICE


SYNCS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool((x > 0).any()),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "copy to the host": lambda x: torch.zeros(3).copy_(x),
    "nonzero": lambda x: x.nonzero(),
    "writing by a mask": lambda x: x.__setitem__(x > 0, x[:1]),
    "unique": lambda x: x.unique(),
    "equal": lambda x: torch.equal(x, x),
    "repeat": lambda x: x.repeat_interleave(x.long()),
}


@pytest.mark.parametrize("wait", SYNCS)
def test_counts_each_wait_for_an_answer(wait: str) -> None:
    tensor = here(3)
    assert counted(lambda: SYNCS[wait](tensor)).syncs == 1


def test_counts_launches_and_no_views() -> None:
    tensor = here(3, 4)
    cost = counted(lambda: (tensor.T[1:].reshape(9) + tensor[0, 0]).mul_(2.0))
    assert (cost.launches, cost.syncs) == (3, 0)  # the copy of a reshape, the sum, the product
    assert counted(lambda: torch.ones(3).to(DEVICE)).syncs == 1
    assert counted(lambda: tensor.split([1, 2])).launches == 0
