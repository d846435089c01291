"""No tensor counts as the users' rows in their order whose rows depend on other users'."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.errors import NoRule
from dprec.gradients.layouts.layout import layout_of
from dprec.gradients.tape import Tape
from dprec.models.networks.reattention import through_linear

USERS = 5
Operation = Callable[[Tensor], Any]
SHAPES = {
    "numbers": (USERS,), "vectors": (USERS, 6), "square": (USERS, USERS), "matrices": (USERS, 4, 6),
    "square matrices": (USERS, 4, 4), "as many positions": (USERS, USERS, 2), "images": (USERS, 3, 4, 6),
}  # fmt: skip
MATRIX = torch.randn(USERS, USERS, generator=torch.Generator().manual_seed(0))


def changed(write: Callable[[Tensor], Any]) -> Operation:
    def operation(x: Tensor) -> Tensor:
        y = x * 1
        write(y)
        return y

    return operation


MIXING: dict[str, Operation] = {
    "matrix @ users": lambda x: MATRIX @ x,
    "users @ users": lambda x: x @ x,
    "fft over users": lambda x: torch.fft.fft(x, None, 0).real,
    "gradient": lambda x: torch.gradient(x)[0],
    "pad": lambda x: F.pad(x, [*[0] * (2 * x.dim() - 2), 1, -1]),
    "attention without a batch": lambda x: F.scaled_dot_product_attention(x, x, x),
    "attention, time first": lambda x: F.multi_head_attention_forward(
        x, x, x, 6, 2, torch.ones(18, 6), None, None, None, False, 0.0, torch.ones(6, 6), None
    )[0],
    "conv1d without a batch": lambda x: F.conv1d(x, torch.ones(USERS, USERS, 3), padding=1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape),
    "softmax of a default": lambda x: F.softmax(x),
    "a part of the users": changed(lambda y: _added_to_the_next(y)),
    "each with each": lambda x: x[:, None] * x,
    "everybody's columns": lambda x: x[:, x.argmax(1)],
    "indices apart": lambda x: x[:, torch.arange(USERS) % 2, :, torch.arange(USERS) % 3],
    "indices apart, after an ellipsis": lambda x: x[..., torch.arange(USERS) % 2, :, torch.arange(USERS) % 3],
    "a diagonal with one dimension told": lambda x: torch.diagonal(x[:, None].expand(-1, USERS, -1), dim2=2),
    "a table of ids": lambda x: F.embedding(torch.arange(USERS) // 2, (9 * x).long()),
    "data": changed(lambda y: setattr(y, "data", y + y.sum(0))),
    "out": changed(lambda y: torch.add(y, y.sum(0), out=y)),
    "foreach": changed(lambda y: torch._foreach_add_([y], [y.sum(0)])),
    "linear with itself": lambda x: F.linear(x, x),
    "conv1d with itself": lambda x: F.conv1d(x, x),
    "einsum, aligned from the last": lambda x: torch.einsum("...j,...j->...", x, x[:, None].expand(-1, USERS, -1)),
    "a part that spans rows": lambda x: _spanning(x),
    "a layer's weight": lambda x: through_linear(x, x[:, 0], x, torch.tensor(1.0)),
    "roll": lambda x: x.roll((1, 1), (1, 0)),
    "running statistics of torch's own": lambda x: _torchs_running(x),
    "isin by sorting": lambda x: torch.isin((4 * x).long(), torch.arange(2, 99), assume_unique=True).float(),
    "another's tanh": lambda x: torch.ops.dprec_tests.tanh(x),
    "transpose by names": lambda x: torch.transpose(input=x, dim0=0, dim1=1),
    "transpose by both": lambda x: torch.transpose(x, 0, dim1=1),
    "a method by both": lambda x: x.transpose(1, dim1=0),
    "movedim by both": lambda x: torch.movedim(x, 0, destination=1),
    "permute by name": lambda x: torch.permute(input=x, dims=(1, 0, 2)),
    "permute twice, to another place": lambda x: x.unsqueeze(2).permute(2, 0, 1, 3).permute(2, 1, 0, 3),
    "softmax by name": lambda x: torch.softmax(input=x, dim=0),
    "another's name for it": lambda x: x.cumsum(axis=0),
    "flip by name": lambda x: torch.flip(input=x, dims=[0]),
    "all against all": lambda x: F.linear(input=x[:, :, 0], weight=x[:, :, 1]),
    "all against all by both": lambda x: F.linear(x[:, :, 0], weight=x[:, :, 1]),
}
APART: dict[str, tuple[str, Operation]] = {
    "users @ matrix": ("vectors", lambda x: x @ torch.ones(6, 2)),
    "matrix @ each": ("matrices", lambda x: torch.ones(2, 4) @ x),
    "bmm": ("matrices", lambda x: torch.bmm(x, x.mT)),
    "adjoint": ("matrices", lambda x: x.adjoint()),
    "fft": ("matrices", lambda x: torch.fft.fft(x, dim=1).real),
    "rfft": ("vectors", lambda x: torch.fft.rfft(x).real),
    "pad": ("matrices", lambda x: F.pad(x, (0, 0, 1, -1))),
    "attention": ("matrices", lambda x: F.scaled_dot_product_attention(x, x, x)),
    "conv1d": ("matrices", lambda x: F.conv1d(x, torch.ones(2, 4, 3))),
    "layer_norm": ("matrices", lambda x: F.layer_norm(x, x.shape[1:])),
    "softmax": ("matrices", lambda x: F.softmax(x, -1)),
    "softmax of a default": ("vectors", lambda x: F.softmax(x)),
    "quantile": ("vectors", lambda x: x.quantile(0.5, 1)),
    "vector_norm": ("matrices", lambda x: torch.linalg.vector_norm(x, dim=-1)),
    "mean of layers": ("matrices", lambda x: torch.stack([x, x.tanh()]).mean(0)),
    "step by step": ("matrices", lambda x: torch.stack(list(x.transpose(0, 1)), 1)),
    "a step of time first": ("matrices", lambda x: x.transpose(0, 1)[-1]),
    "instance_norm": ("matrices", F.instance_norm),
    "a mask of this type": ("matrices", lambda x: x.masked_fill(x.new_ones(4, 6).triu() > 0, 0.0)),
    "a draw for each": ("matrices", lambda x: torch.randint(9, (USERS,))),
    "einsum of the last dimensions": ("matrices", lambda x: torch.einsum("...ij,jk->...ik", x, torch.ones(6, 2))),
    "an index by range": ("matrices", lambda x: x[range(USERS), x.sum(2).argmax(1)]),
    "softmax by keywords": ("matrices", lambda x: torch.softmax(x, dim=1)),
    "a part of each": ("matrices", changed(lambda y: y[:, 1:].add_(y[:, :-1].clone()))),
}


@torch.library.custom_op("dprec_tests::tanh", mutates_args=())
def _another(x: Tensor) -> Tensor:
    return x / x.max()


def _added_to_the_next(y: Tensor) -> None:
    y[1:] += y[:-1].clone()


def _spanning(x: Tensor) -> Tensor:
    buffer = torch.zeros(USERS + 9, 6).resize_(USERS, 6)
    torch.as_strided(buffer, (USERS, 6), (6, 7), 5).copy_(x)
    return buffer * 1


def result(operation: Operation, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    found: Tensor = operation(x.clone())
    return found


def _torchs_running(x: Tensor) -> Tensor:
    mean, each = torch.zeros(USERS), x[:, None].expand(-1, USERS, -1).contiguous()
    torch.instance_norm(each, None, None, mean, torch.ones(USERS), True, 0.1, 1e-5, False)
    return mean


def counts(operation: Operation, x: Tensor) -> bool:
    """Whether the result counts as the users' rows in their order."""
    with Tape({"p": nn.Parameter(torch.zeros(1))}, USERS) as tape:
        own = x.clone()
        tape.watch([own])
        try:
            known = layout_of(operation(own))
        except NoRule:
            return False
    return known is not None and known.known


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MIXING)
def test_an_operation_that_mixes_users_loses_their_order(name: str) -> None:
    torch.manual_seed(1)
    mixed = 0
    for shape, user in product(SHAPES.values(), (1, 2)):
        x = torch.rand(shape) + 0.1
        other = x.clone()
        other[user] = 3 * torch.rand(shape[1:]) + 1
        try:
            before, after = result(MIXING[name], x), result(MIXING[name], other)
        except (RuntimeError, IndexError, ValueError, AssertionError):  # not for this shape
            continue
        rest = [u for u in range(USERS) if u != user]
        if before.shape[:1] == (USERS,) and not torch.allclose(before[rest], after[rest], rtol=1e-4):
            mixed += 1
            assert not counts(MIXING[name], x), shape
    assert mixed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", APART)
def test_an_operation_on_each_user_keeps_it(name: str) -> None:
    shape, operation = APART[name]
    x = torch.rand(SHAPES[shape])
    assert counts(operation, x)
