"""Models, batches and steps of which the processes of a CPU's cores have shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dprec.data import SequenceBatch, Sequences
from dprec.gradients.clipping import Clipping
from dprec.models import GRU, DPFormer, DualEncoder, Transformer
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.cores import AllCores, OneCore, cores_for
from dprec.privacy.private_gradient import PrivateGradient
from dprec.training.script import private

ITEMS, LENGTH = 30, 12
MODELS = {"transformer": Transformer, "dpformer": DPFormer, "gru": GRU, "dual": DualEncoder}

# Where torch has a device, such as that of tests/device, nothing is forked.
OUTSIDE = torch.accelerator.is_available()
forks = pytest.mark.skipif(OUTSIDE, reason="tests/device registers a device: leave it out, or run this folder alone")


def model_of(kind: str = "transformer", **options: Any) -> Any:
    torch.manual_seed(0)
    more = {} if kind == "gru" else {"max_length": LENGTH}
    model: Any = MODELS[kind](items=ITEMS, dim=8, **more, **({"dropout": 0.0} | options))
    if kind == "dpformer":
        model.network.set_error(0.1)  # as a run does, so that Re-Attention is on
    return model


def batch_of(seed: int = 0, sizes: Sequence[int] = (7, 4, 1)) -> list[SequenceBatch]:
    draw, parts = torch.Generator().manual_seed(seed), []
    for number, users in enumerate(sizes):
        length = LENGTH // (1 + number)
        rows = torch.randint(1, ITEMS, (users, length + 1), generator=draw)
        lengths = torch.randint(1, length + 1, (users, 1), generator=draw)
        inside = torch.arange(length) < lengths
        parts.append(SequenceBatch(rows[:, :-1] * inside, rows[:, 1:] * inside))
    return parts


def gradient_by(model: Any, cores: OneCore, sigma: float = 0.0) -> PrivateGradient:
    return PrivateGradient(Clipping("flat", 0.1), StepNoise(GaussianNoise(5), sigma, 10.0), cores=cores)


def steps_of(model: Any, cores: OneCore, steps: int = 4, sigma: float = 0.0) -> list[Tensor]:
    """Return where some steps lead."""
    gradient, parameters = gradient_by(model, cores, sigma), dict(model.named_parameters())
    optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
    for step in range(steps):
        gradient(parameters, model.losses, batch_of(step))
        optimizer.step()
    return [p.detach().clone() for p in parameters.values()]


OPENED: list[AllCores] = []  # which conftest closes


def all_cores_of(model: Any) -> AllCores:
    cores = cores_for(model)
    assert isinstance(cores, AllCores)
    OPENED.append(cores)
    return cores


def close(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(one, other, strict=True))


def gradients(cores: OneCore, model: Any, change: Any, steps: int = 3) -> list[Tensor]:
    """Return the gradients of all steps, before each of which something changes; it may give other losses."""
    gradient, parameters = gradient_by(model, cores), dict(model.named_parameters())
    found = []
    for step in range(steps):
        losses = change(model, step) or model.losses
        gradient(parameters, losses, batch_of())
        found += [p.grad.clone() for p in parameters.values()]
    return found


def data_of(**options: Any) -> Sequences:
    return Sequences(
        "synthetic", synthetic_users=60, synthetic_items=20, min_events=0, max_length=8, batch_size=20, **options
    )


def script(verify: float = 0.0, steps: int = 6) -> Any:
    data = data_of(sampling_seed=1)
    data.setup()
    torch.manual_seed(0)
    model = Transformer(**data.sizes, dim=8, dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return private(
        model, optimizer, data.train_dataloader(), noise_multiplier=1.0, steps=steps, noise_seed=2, verify=verify
    )


def finish(training: Any) -> None:
    for batch in training:
        training.step(batch)
