"""What a model writes of its users to parameters and buffers would be released without noise: refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.checks.state import Unchanged, checksum
from dprec.errors import MixedUsers, UserError
from tests.checks.test_loading import ITEMS, Bag, one, train


class Writes(Bag):
    """Writes the mean of its users' items somewhere, from some step on."""

    start = 0

    def __init__(self) -> None:
        super().__init__()
        self.codebook = nn.Parameter(torch.zeros(4))
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("unsaved", torch.zeros(4), persistent=False)

    def write(self, value: float) -> None:
        raise NotImplementedError

    def losses(self, batch: Any) -> Tensor:
        if self.global_step >= self.start:
            self.write(float(batch.events.float().mean()))
        return super().losses(batch) + self.codebook.sum()


def writer(how: Any) -> type[Writes]:
    return type("Writer", (Writes,), {"write": how})


def by_data(model: Any, value: float) -> None:
    model.codebook.data.fill_(value)


def by_rows(model: Any, value: float) -> None:
    model.table.weight.data[ITEMS - 1] = value


def in_place(model: Any, value: float) -> None:
    with torch.no_grad():
        model.codebook.fill_(value)


def by_numpy(model: Any, value: float) -> None:
    model.codebook.detach().numpy()[0] = value


def by_another_tensor(model: Any, value: float) -> None:
    model.codebook.data = torch.full((4,), value)


WAYS = {
    "data": (by_data, "codebook"),
    "rows": (by_rows, "table.weight"),
    "in-place": (in_place, "codebook"),
    "numpy": (by_numpy, "codebook"),
    "swapped": (by_another_tensor, "codebook"),
    "frozen": (lambda m, v: m.frozen.data.fill_(v), "frozen"),
    "buffer": (lambda m, v: m.seen.fill_(v), "seen"),
    "unsaved": (lambda m, v: m.unsaved.data.fill_(v), "unsaved"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_losses_write_is_found_before_the_first_step(way: str) -> None:
    write, name = WAYS[way]
    with pytest.raises(MixedUsers, match=f"'{name}.*' changes with the users' data"):
        train(writer(write)(), one)


@pytest.mark.parametrize("way", WAYS)
def test_all_of_them_are_compared_in_every_step(way: str) -> None:
    write, name = WAYS[way]
    model = writer(write)()
    model.start = 2
    with pytest.raises(MixedUsers, match=name):
        train(model, one)
    assert model.global_step == 2


def test_a_model_that_writes_nothing_trains() -> None:
    assert train(writer(lambda m, v: None)(), one).steps == 4


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


def test_owing_tables_may_pay_and_the_rest_may_not() -> None:
    model = Bag()
    watch = Unchanged(model, ["table.weight"])
    watch.begin()
    with torch.no_grad():
        model.table.weight.add_(1.0)
    watch.end()
    watch.begin()
    model.out.bias.data.add_(1.0)
    with pytest.raises(MixedUsers, match="out.bias"):
        watch.end()
