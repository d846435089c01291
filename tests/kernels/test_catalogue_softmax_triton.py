"""The kernels against the reference, interpreted everywhere and compiled where there is a GPU."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
from torch import Tensor

from dprec_kernels import reference
from tests.kernels.interpreter import DEVICES, outside, shared_memory

pytestmark = pytest.mark.full

# Users, positions, items, width, type. Products of bfloat16 are exact in float32, so both types are held to the
# roundings of float32 sums.
SIZES = [
    (3, 7, 11, 5, torch.float32),
    (1, 1, 2, 1, torch.float32),
    (2, 63, 37, 60, torch.bfloat16),
    (2, 1, 130, 8, torch.float32),
    (1, 5, 20, 200, torch.bfloat16),
]
TOLERANCE = 2e-5


@outside
@pytest.mark.parametrize(("dim", "floats"), [(512, "fp32*"), (60, "bf16*")])
def test_kernels_compile_and_fit_on_chip(kernels: ModuleType, dim: int, floats: str) -> None:
    like = torch.empty(1, dim, dtype=torch.bfloat16 if floats == "bf16*" else torch.float32)
    shape = {**kernels._tile(dim), **kernels._precisions(like, like)}
    inputs = f"{floats} {floats} i64* fp32* fp32*"
    most = max(
        shared_memory(kernels.catalogue_softmax_fwd_kernel, inputs + " fp32*" * 2 + " i32" * 4, **shape),
        shared_memory(
            kernels.catalogue_softmax_bwd_table_kernel, f"fp64* {inputs}{' i32' * 8}",
            PART=kernels.PART, ADD=True, **shape,
        ),
        shared_memory(
            kernels.catalogue_softmax_user_norms_kernel,
            f"fp32* {inputs} i64* i64* i64* {floats}" + " i32" * 6, BI=16, **shape,
        ),
    )  # fmt: skip
    assert most <= 99 * 1024  # what the smallest GPUs since Ampere have


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("users", "length", "items", "dim", "dtype"), SIZES)
def test_loss_slope_and_table_gradient_equal_the_reference(
    kernels: ModuleType, users: int, length: int, items: int, dim: int, dtype: torch.dtype, device: str
) -> None:
    hidden, table, target, weight = _some(users, length, items, dim, dtype, device)
    loss, log_total, slope, _ = kernels.forward(hidden.flatten(0, 1), table, target.flatten(), 0)
    exact_hidden, exact_table = hidden.double().requires_grad_(), table.double().requires_grad_()
    exact = reference.catalogue_softmax(exact_hidden, exact_table, target)
    _close(loss, exact.flatten())
    _close(slope, torch.autograd.grad(exact.sum(), exact_hidden, retain_graph=True)[0].flatten(0, 1))
    assert (log_total[target.flatten() == 0] == float("inf")).all()
    out = torch.ones(items, dim, device=device)
    kernels.add_table_gradient(out, hidden.flatten(0, 1), table, target.flatten(), log_total, weight.flatten(), 0)
    _close(out - 1, torch.autograd.grad((exact * weight).sum(), exact_table)[0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("users", "length", "items", "dim", "dtype"), SIZES)
@pytest.mark.parametrize("reads", [0, 63])
def test_norms_of_a_tied_table_equal_those_of_the_gradients(
    kernels: ModuleType, users: int, length: int, items: int, dim: int, reads: int, dtype: torch.dtype, device: str
) -> None:
    hidden, table, target, weight = _some(users, length, items, dim, dtype, device)
    ids = torch.randint(0, items, (users, reads), device=device)
    values = torch.randn(users, reads, dim, device=device).to(dtype)
    log_total = kernels.forward(hidden.flatten(0, 1), table, target.flatten(), 0)[1].view(target.shape)
    gradients = reference.user_gradients(hidden.double(), table.double(), target, weight.double())
    for gradient, row, value in zip(gradients, ids, values.double(), strict=True):
        gradient.index_put_((row,), value, accumulate=True)
    found = kernels.user_squared_norms(hidden, table, target, log_total, weight, ids, values, 0)
    _close(found.sqrt(), gradients.flatten(1).norm(dim=1))


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_padded_does_not_count(kernels: ModuleType, device: str) -> None:
    hidden, table, target, weight = _some(3, 40, 50, 8, torch.float32, device)
    target[1, 3:], target[2, :] = 0, 0
    found = _all(kernels, hidden, table, target, weight)
    table[0] = 1e6
    hidden[1, 3:], hidden[2, :] = 1e30, float("nan")
    weight[target == 0] = float("nan")
    for one, other in zip(found, _all(kernels, hidden, table, target, weight), strict=True):
        assert torch.equal(one, other)
    assert found[-1][2] == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_position_without_weight_adds_nothing_whatever_it_holds(kernels: ModuleType, device: str) -> None:
    hidden, table, target, weight = _some(2, 6, 9, 4, torch.float32, device)
    weight[0, 3] = 0
    flat = target.flatten()
    log_total = kernels.forward(hidden.flatten(0, 1), table, flat, 0)[1]
    hidden[0, 3] = float("nan")
    out = torch.zeros(9, 4, device=device)
    kernels.add_table_gradient(out, hidden.flatten(0, 1), table, flat, log_total, weight.flatten(), 0)
    assert out.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
def test_large_scores_do_not_overflow(kernels: ModuleType, device: str) -> None:
    hidden = torch.full((1, 2), 1e3, device=device)
    table = torch.tensor([[0.0, 0], [1e3, 0], [-1e3, 0]], device=device)
    assert kernels.forward(hidden, table, torch.tensor([1], device=device), 0)[0].tolist() == [0.0]


@pytest.mark.parametrize("device", DEVICES)
def test_a_target_outside_the_table_shows(kernels: ModuleType, device: str) -> None:
    hidden, table = torch.randn(2, 4, device=device), torch.randn(3, 4, device=device)
    assert kernels.forward(hidden, table, torch.tensor([3, 1], device=device), 0)[0].isnan().tolist() == [True, False]


@pytest.fixture(name="kernels")
def _kernels() -> ModuleType:
    return importlib.import_module("dprec_kernels.catalogue_softmax.triton")


def _some(users: int, length: int, items: int, dim: int, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
    """Hidden vectors, a table, targets that end in padding for all but the first user, and weights."""
    hidden, table = torch.randn(users, length, dim).to(dtype), torch.randn(items, dim).to(dtype)
    target = torch.randint(min(1, items - 1), items, (users, length))
    for user in range(1, users):
        target[user, length // (4 * user) :] = 0
    return hidden.to(device), table.to(device), target.to(device), torch.rand(users, length).to(device)


def _all(kernels: ModuleType, hidden: Tensor, table: Tensor, target: Tensor, weight: Tensor) -> list[Tensor]:
    flat = hidden.flatten(0, 1), table, target.flatten()
    loss, log_total, slope, _ = kernels.forward(*flat, 0)
    out = torch.zeros(table.shape, device=table.device)
    kernels.add_table_gradient(out, *flat, log_total, weight.flatten(), 0)
    none = target[:, :0]
    norms = kernels.user_squared_norms(
        hidden, table, target, log_total.view(target.shape), weight, none, hidden[:, :0], 0
    )
    return [loss, log_total, slope, out, norms]


def _close(found: Tensor, exact: Tensor) -> None:
    assert found.shape == exact.shape
    assert (found.double() - exact.double()).abs().max() <= TOLERANCE * max(1.0, exact.abs().max().item())
