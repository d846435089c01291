"""Users whom the tape cannot tell apart, under `torch.vmap`: exact, the same in any company, and in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.gradients import vmapped
from dprec.gradients.clipping import Clipping, user_gradients
from tests.one_micro_batch import clipped_sums, off, one_by_one

Between = Callable[["Pairs", Tensor, Tensor], Tensor]
USERS, CLIPPING = 40, Clipping("flat", 0.5)


class Pairs(nn.Module):
    """A table, a first position, and a layer without a rule, after what `between` does."""

    def __init__(self, between: Between) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.first, self.pairs = nn.Embedding(30, 4), nn.Parameter(torch.randn(3, 4)), nn.Bilinear(4, 4, 2)
        self.between, self.calls, self.kept = between, 0, list[Tensor]()

    def losses(self, ids: Tensor) -> Tensor:
        self.calls += 1
        x = self.between(self, self.table(ids) + self.first, ids)
        return self.pairs(x, x).square().sum((1, 2)) + self.table.weight[0].sum()


def plain(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    return x


def first_without_grad(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    with torch.no_grad():
        norm = model.first.norm()
    return x / norm


def by_vmap(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    return torch.vmap(lambda own: own.tanh())(x)


def kept(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    model.kept += [ids, x.detach()]
    return x


def by_hook(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    x.register_hook(lambda gradient: gradient / gradient.norm())
    return x


def by_number(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    return x * int(ids[0, 0])


def of_numpy(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    return x * torch.from_numpy(ids.numpy() % 2).unsqueeze(-1)


def padded(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    return x + F.embedding(ids // 2, model.table.weight * 2, padding_idx=0)


def by_requires_grad(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    return x * 2 if x.requires_grad else x


def by_module_hook(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    layer = nn.Identity()
    layer.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] / 2,))
    return layer(x)


def drawn(model: Pairs, x: Tensor, ids: Tensor) -> Tensor:
    return x + 0 * np.random.rand()  # noqa: NPY002


def batch(users: int = USERS) -> Tensor:
    return torch.randint(1, 30, (users, 3), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("between", [plain, first_without_grad, by_vmap, kept])
def test_one_call_serves_all_users(between: Between) -> None:
    model = Pairs(between)
    found = clipped_sums(model, [batch()], CLIPPING, model.losses)
    assert model.calls == 2  # the tape's, and this
    assert all(value.sum().isfinite() for value in model.kept[2:])  # of the last user
    assert off(found, one_by_one(model, batch(), CLIPPING)) <= 1e-5


@pytest.mark.parametrize("between", [by_hook, by_number, of_numpy, padded, by_requires_grad, by_module_hook, drawn])
def test_what_it_cannot_run_is_taken_one_by_one(between: Between) -> None:
    model = Pairs(between)
    found = clipped_sums(model, [batch()], CLIPPING, model.losses)
    assert model.calls == 2 + USERS
    assert off(found, one_by_one(model, batch(), CLIPPING)) <= 1e-5
    clipped_sums(model, [batch()], CLIPPING, model.losses)
    assert model.calls == 3 + 3 * USERS  # it is not tried again


@pytest.mark.parametrize(("rows", "users", "calls"), [(128, 200, 7), (127, 40, 42)])
def test_users_share_no_more_than_there_is_room_for(
    rows: int, users: int, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 128 rows, 49 are users. Below, a model goes one by one in a batch of any size."""
    model = Pairs(plain)
    wanted = one_by_one(model, batch(users), CLIPPING)
    monkeypatch.setattr(vmapped, "ROOM", 50 * rows)
    model.calls = 0
    assert off(clipped_sums(model, [batch(users)], CLIPPING, model.losses), wanted) <= 1e-5
    assert model.calls == calls  # the tape's, those that are too large, and these


def test_a_users_bits_are_the_same_alone() -> None:
    model = Pairs(plain)
    parameters: dict[str, Any] = dict(model.named_parameters())
    ((_, together),) = user_gradients(parameters, model.losses, batch())
    for user in (0, 17, USERS - 1):
        ((_, own),) = user_gradients(parameters, model.losses, batch()[user : user + 1])
        assert torch.equal(own.losses[:1], together.losses[user : user + 1])
        for name, parameter in parameters.items():
            for of_one, of_all in zip(own.contributions[name], together.contributions[name], strict=True):
                one, among = (torch.zeros(1, *parameter.shape) for _ in range(2))
                of_one.materialise(one, slice(0, 1))
                of_all.materialise(among, slice(user, user + 1))
                assert torch.equal(one, among), name
