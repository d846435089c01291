"""Private steps, sums in bfloat16 and evaluation of every model on another device are those of the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from dprec.data.draws.batch import RankingBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.gradients.uses.batches import batch_tensors
from dprec.models.base import Recommender
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from tests.device.pretend import DEVICE, OnPretend
from tests.kernels.interpreter import INTERPRETED
from tests.one_micro_batch import clipped_sums, off
from tests.zoo.recommenders import MODELS, batch_for

pytestmark = [pytest.mark.usefixtures("by_kernels"), pytest.mark.full]
USERS = 7


def trained(model: Any, name: str, device: torch.device | str, sigma: float = 0.0, steps: int = 2) -> Any:
    """Take steps of micro-batches of different length on a device, and evaluate; return the model, on the CPU."""
    model = model.to(device)
    gradient = PrivateGradient(Clipping(), StepNoise(GaussianNoise(5), sigma, USERS), padding_rows(model))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        gradient.step_noise.source.at(step)
        batch = batch_for(name, USERS, seed=step)
        parts = [batch.select(range(0, 3)), batch.select(range(3, USERS))]
        gradient(trained_parameters(model), model.losses, [moved_to(part, device) for part in parts])
        optimizer.step()
    model.eval().measure(moved_to(held_out(model, batch_for(name, USERS)), device))
    return model


def moved_to(batch: Any, device: torch.device | str) -> Any:
    return moved(batch) if device == DEVICE else batch


def held_out(model: Any, batch: Any) -> Any:
    if isinstance(model, Recommender):
        return RankingBatch(batch.history, batch.targets[:, 0].clamp(min=1), batch.history)
    return batch


@pytest.mark.parametrize("name", MODELS)
def test_steps_and_metrics_are_those_of_the_cpu(name: str) -> None:
    torch.manual_seed(2)
    model = MODELS[name]()
    here, there = (trained(copy.deepcopy(model), name, device) for device in ("cpu", DEVICE))
    assert any(isinstance(parameter, OnPretend) for parameter in there.parameters())
    for (name, exact), found in zip(here.named_parameters(), there.parameters(), strict=True):
        assert torch.allclose(found.cpu(), exact, atol=1e-5), name
    for (name, exact), found in zip(here.metrics.compute().items(), there.metrics.compute().values(), strict=True):
        assert float(found) == pytest.approx(float(exact), abs=1e-4), name


def test_noise_is_in_every_parameter_and_padding_stays() -> None:
    start = MODELS["transformer"]()
    model = trained(copy.deepcopy(start), "transformer", DEVICE, sigma=3.0)
    for before, after in zip(start.parameters(), model.parameters(), strict=True):
        moved_at_all = (after.cpu() != before).float().mean()
        assert moved_at_all > 0.9
    assert not model.embedding.weight[0].any()


def moved(batch: Any) -> Any:
    return type(batch)(*(tensor.to(DEVICE) for tensor in batch_tensors(batch)))


def coarse(batch: Any) -> Any:
    return type(batch)(*(t.bfloat16() if t.is_floating_point() else t for t in batch_tensors(batch)))


@pytest.mark.skipif(INTERPRETED, reason="takes minutes there, and kernels take float32")
@pytest.mark.parametrize("whole", [False, True], ids=["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("name", ["transformer", "dual-encoder", "gru", "pctr"])
def test_sums_in_bfloat16_are_near_those_of_the_cpu(name: str, whole: bool) -> None:
    torch.manual_seed(1)
    model, batch = MODELS[name](), batch_for(name, 7)
    if whole:
        model, batch = model.bfloat16(), coarse(batch)
    sums = []
    for device in ("cpu", DEVICE):
        with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=not whole):
            found = clipped_sums(copy.deepcopy(model).to(device), [moved_to(batch, device)], Clipping())
        sums.append({name: total.cpu() for name, total in found.items()})
    assert off(sums[1], sums[0]) < 0.03
