"""Steps of several processes are those of one: who computes which users, which losses, and what changes between."""

from __future__ import annotations

import copy
import os
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.models import Transformer
from dprec.privacy import cores as package
from dprec.privacy.cores import FORKS, OneCore
from dprec.privacy.cores.anywhere import computes_anywhere
from dprec.privacy.cores.shares import balanced_shares
from tests.privacy.cores.support import (
    ITEMS,
    LENGTH,
    MODELS,
    all_cores_of,
    batch_of,
    close,
    forks,
    gradient_by,
    gradients,
    model_of,
    steps_of,
)

pytestmark = pytest.mark.full


@forks
@pytest.mark.parametrize("sigma", [0.0, 1.0])
@pytest.mark.parametrize("kind", MODELS)
def test_steps_are_those_of_one_process(kind: str, sigma: float) -> None:
    alone, model = model_of(kind), model_of(kind)
    cores = all_cores_of(model)
    expected = steps_of(alone, OneCore(), sigma=sigma)
    assert close(expected, steps_of(model, cores, sigma=sigma))
    assert len(active_children()) == 2
    assert not close(expected, list(model_of(kind).parameters()))
    assert all(view.any() for other in cores._others for view in other._sums.views[:1])  # each has added something up


@forks
def test_the_loss_that_is_told_is_that_of_all_users() -> None:
    model = model_of()
    cores = all_cores_of(model)
    gradient, parameters = gradient_by(model, cores), dict(model.named_parameters())
    expected = torch.cat([model.losses(part) for part in batch_of()]).mean().item()
    for _ in range(2):
        assert gradient(parameters, model.losses, batch_of()) == pytest.approx(expected, rel=1e-5)


@forks
def test_a_batch_that_draws_nobody_is_a_step() -> None:
    model = model_of()
    cores = all_cores_of(model)
    gradient, parameters = gradient_by(model, cores), dict(model.named_parameters())
    for batch in (batch_of(), [], batch_of(sizes=[1]), []):
        gradient(parameters, model.losses, batch)
    assert all(float(p.grad.abs().sum()) == 0 for p in parameters.values() if p.grad is not None)


class Overflowing(Transformer):
    """The gradient of whoever has met item 7 is not finite."""

    loss_is_row_local = True

    def losses(self, batch: SequenceBatch) -> Tensor:
        return super().losses(batch) * torch.where((batch.history == 7).any(1), torch.inf, 1.0)


@forks
def test_a_user_whose_gradient_is_not_finite_counts_as_in_one_process() -> None:
    def nothing(*_: Any) -> None:
        return None

    torch.manual_seed(0)
    alone = Overflowing(items=ITEMS, max_length=LENGTH, dim=8, dropout=0.0)
    model = copy.deepcopy(alone)
    cores = all_cores_of(model)
    found = gradients(cores, model, nothing)
    assert close(gradients(OneCore(), alone, nothing), found)
    assert any(gradient.any() for gradient in found)


class Mine(Transformer):
    """A model of one's own: nobody knows what its losses read."""


class Promised(Transformer):
    """One that says what its losses read."""

    loss_is_row_local = True

    def encode(self, history: Tensor, context: Tensor | None = None) -> Tensor:
        return super().encode(history, context) * 2


@forks
def test_a_model_of_one_s_own_that_promises_is_dealt() -> None:
    torch.manual_seed(0)
    alone = Promised(items=ITEMS, max_length=LENGTH, dim=8, dropout=0.0)
    model = copy.deepcopy(alone)
    cores = all_cores_of(model)
    assert close(steps_of(alone, OneCore()), steps_of(model, cores))
    assert len(active_children()) == 2


def patched() -> Any:
    model = model_of()
    model.encode = lambda history: model.embedding(history)
    return model


@forks
@pytest.mark.parametrize(
    "make",
    [
        lambda: Mine(items=ITEMS, max_length=LENGTH, dim=8),
        lambda: model_of(negatives=3),
        lambda: nn.Sequential(model_of()),
        patched,
    ],
    ids=["own class", "shared negatives", "within another", "patched"],
)
def test_other_models_are_one_process_s(make: Any) -> None:
    model = make()
    assert not computes_anywhere(model, getattr(model, "losses", model.forward))


@forks
def test_other_losses_are_one_process_s() -> None:
    model = model_of()
    assert computes_anywhere(model, model.losses)
    assert not computes_anywhere(model, lambda batch: model.losses(batch))
    assert not computes_anywhere(model, model_of().losses)


@forks
def test_losses_that_draw_are_one_process_s() -> None:
    model = model_of(dropout=0.5)
    cores = all_cores_of(model)
    steps_of(model, cores)
    assert not active_children()


def other_number(model: Any, step: int) -> None:
    for part in model.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 10.0**-step


def other_weights(model: Any, step: int) -> None:
    with torch.no_grad():
        model.embedding.weight[3] += step


def other_buffer(model: Any, step: int) -> None:
    model.item_error.copy_(0.1 * step * torch.linspace(0, 3, ITEMS))


def other_module(model: Any, step: int) -> None:
    for block in model.network.blocks:
        block.last = nn.ReLU() if step else nn.GELU()
    model.network.last_norm = nn.LayerNorm(8, elementwise_affine=False) if step else nn.Identity()


def other_hook(model: Any, step: int) -> None:
    if step:
        model.network.register_forward_hook(lambda module, given, made: made * 2)


@forks
@pytest.mark.parametrize("change", [other_number, other_module, other_hook])
def test_what_changes_between_steps_counts_for_all_users(change: Any) -> None:
    model = model_of()
    cores = all_cores_of(model)
    found = gradients(cores, model, change)
    expected = gradients(OneCore(), model_of(), change)
    assert close(expected, found)
    third = len(expected) // 3
    assert not close(expected[:third], expected[third : 2 * third])  # it matters


@forks
def test_weights_and_buffers_reach_processes_that_live_on() -> None:
    for change in (other_weights, other_buffer):
        model = model_of("dpformer")
        cores = all_cores_of(model)
        gradients(cores, model, lambda *_: None, steps=1)
        before = {process.pid for process in active_children()}
        found = gradients(cores, model, change)
        assert {process.pid for process in active_children()} == before
        assert close(gradients(OneCore(), model_of("dpformer"), change), found)


@forks
def test_a_model_that_changes_all_the_time_is_one_process_s() -> None:
    model = model_of()
    cores = all_cores_of(model)
    with pytest.warns(UserWarning, match="attributes changed"):
        gradients(cores, model, lambda model, step: setattr(model, "count", step), steps=FORKS + 1)
    assert not active_children()


def test_every_user_is_dealt_once_and_shares_are_alike() -> None:
    for sizes_of_parts in ([7, 4, 1], [1], [2], [40, 30, 20, 10, 5], [100], []):
        parts = batch_of(sizes=sizes_of_parts)
        for several in (1, 2, 3, 8):
            shares = balanced_shares(parts, several)
            assert len(shares) == several
            rows = sorted(tuple(row[row != 0].tolist()) for share in shares for part in share for row in part.history)
            assert rows == sorted(tuple(row[row != 0].tolist()) for part in parts for row in part.history)
            assert all(len(part) for share in shares for part in share)
    many = batch_of(sizes=[4000, 3000, 2000])
    work = [sum(int((part.history != 0).sum()) for part in share) for share in balanced_shares(many, 3)]
    assert max(work) < 1.2 * min(work)


def test_there_are_no_more_processes_than_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(48)))
    for quota, expected in (("max 100000", 8), ("250000 100000", 3), ("", 8)):
        file = tmp_path / "cpu.max"
        file.write_text(quota)
        monkeypatch.setattr(package, "Path", lambda _, file=file: file)
        assert package.cores() == expected
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert package.cores() == 1
