"""What a model writes of its users, anywhere that it holds anything, would be released without noise: refused."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dprec.checks import state
from dprec.checks.state import Unchanged, checksum, state_of
from dprec.errors import MixedUsers, UserError
from tests.checks.test_loading import ITEMS, Bag, one, train


class Holder:
    def __init__(self) -> None:
        self.sum = 0.0


class Slotted:
    __slots__ = ("seen",)


class Writes(Bag):
    """Writes the mean of its users' items somewhere, from some step on."""

    start = 0
    shared = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.codebook = nn.Parameter(torch.zeros(4))
        self.array, self.objects = np.zeros(3), np.array([None, None])
        self.plain, self.slotted = Holder(), Slotted()
        self.slotted.seen = 0
        self.number, self.text, self.raw = 0.0, "", bytearray(4)
        self.listed, self.mapped, self.met, self.queue = [0.0], {"a": {"b": 0.0}}, {0}, deque([0.0])
        self.counted: Counter[int] = Counter()
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        held = [0.0]
        self.keep = lambda value: held.__setitem__(0, value)

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
    "array": (lambda m, v: m.array.fill(v), "array"),
    "objects": (lambda m, v: m.objects.fill(v), "objects"),
    "object": (lambda m, v: setattr(m.plain, "sum", v), "plain.sum"),
    "slot": (lambda m, v: setattr(m.slotted, "seen", v), "slotted.seen"),
    "number": (lambda m, v: setattr(m, "number", v), "number"),
    "text": (lambda m, v: setattr(m, "text", str(v)), "text"),
    "bytes": (lambda m, v: m.raw.__setitem__(0, int(v) + 1), "raw"),
    "list": (lambda m, v: m.listed.append(v), "listed"),
    "mapping": (lambda m, v: m.mapped["a"].update(b=v), "mapped"),
    "set": (lambda m, v: m.met.add(v), "met"),
    "queue": (lambda m, v: m.queue.append(v), "queue"),
    "counter": (lambda m, v: m.counted.update([int(v)]), "counted"),
    "new": (lambda m, v: setattr(m, "fresh", v), "fresh"),
    "closure": (lambda m, v: m.keep(v), "keep"),
    "class": (lambda m, v: setattr(Writes, "shared", v), "Writes.shared"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_losses_write_is_found_before_the_first_step(way: str) -> None:
    write, name = WAYS[way]
    with pytest.raises(MixedUsers, match=f"'{name}.*' changes with the users' data"):
        train(writer(write)(), one)


@pytest.mark.parametrize("way", ["data", "rows", "in-place", "numpy", "swapped"])
def test_trained_parameters_are_compared_in_every_step(way: str) -> None:
    model = writer(WAYS[way][0])()
    model.start = 2
    with mock.patch.object(state, "SHARE", 0.0), pytest.raises(MixedUsers, match=WAYS[way][1]):
        train(model, one)
    assert model.global_step == 2


@pytest.mark.parametrize("way", ["frozen", "array", "object", "number", "list", "class"])
def test_everything_else_is_compared_at_random_steps(way: str) -> None:
    model = writer(WAYS[way][0])()
    model.start = 2
    with mock.patch.object(state, "SHARE", 1.0), pytest.raises(MixedUsers, match=WAYS[way][1]):
        train(model, one)
    assert model.global_step == 2


@pytest.mark.full
def test_a_model_that_writes_nothing_trains_with_everything_compared() -> None:
    with mock.patch.object(state, "SHARE", 1.0):
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


def test_a_checksum_sees_every_bit_and_every_exchange() -> None:
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
    x = torch.randn(9000, 4)
    swapped = x.clone()
    swapped[[1, 8000]] = x[[8000, 1]]
    assert checksum(swapped) != checksum(x)
    assert checksum(x.mT) == checksum(x.mT.contiguous())
    assert checksum(torch.zeros(())) != checksum(torch.ones(()))


def test_a_huge_tensor_is_looked_at_in_pieces() -> None:
    with mock.patch.object(state, "WHOLE", 2**14), mock.patch.object(state, "PIECES", 4):
        x = torch.zeros(2**17)
        assert checksum(x, 1) == checksum(x.clone(), 1)
        assert checksum(x, 1) != checksum(x + 1, 1)


def test_owing_tables_may_pay_and_the_rest_may_not() -> None:
    model = Bag()
    watch = Unchanged(model, ["table.weight"], share=1.0)
    watch.begin()
    with torch.no_grad():
        model.table.weight.add_(1.0)
    watch.end()
    watch.begin()
    model.out.bias.data.add_(1.0)
    with pytest.raises(MixedUsers, match="out.bias"):
        watch.end()


def test_reading_the_state_changes_nothing() -> None:
    model = writer(lambda m, v: None)()
    assert state_of(model) == state_of(model)
