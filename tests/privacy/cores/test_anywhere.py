"""Which losses other processes find, too, and what changes between two steps."""

from __future__ import annotations

import copy
from multiprocessing import active_children
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.models import Transformer
from dprec.privacy.cores import FORKS, OneCore
from dprec.privacy.cores.anywhere import computes_anywhere
from tests.privacy.cores.support import ITEMS, LENGTH, all_cores_of, close, forks, gradients, model_of, steps_of

pytestmark = pytest.mark.full


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
    cores.close()


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
@pytest.mark.parametrize(
    "change",
    [
        *(other_number, other_module, other_hook),
    ],
)
def test_what_changes_between_steps_counts_for_all_users(change: Any) -> None:
    kind = "dpformer" if change is other_buffer else "transformer"
    model = model_of(kind)
    cores = all_cores_of(model)
    found = gradients(cores, model, change)
    cores.close()
    expected = gradients(OneCore(), model_of(kind), change)
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
        cores.close()


@forks
def test_a_model_that_changes_all_the_time_is_one_process_s() -> None:
    model = model_of()
    cores = all_cores_of(model)
    with pytest.warns(UserWarning, match="attributes changed"):
        gradients(cores, model, lambda model, step: setattr(model, "count", step), steps=FORKS + 1)
    assert not active_children()
