"""Clipped sums of every model on another device are those of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import trained_parameters
from tests.adding import add_clipped
from tests.device.pretend import DEVICE, OnPretend
from tests.models.zoo import MODELS, batch_for


def clipped_sums(model: Any, batch: Any) -> tuple[dict[str, Tensor], Tensor]:
    parameters = trained_parameters(model)
    sums = {name: torch.zeros_like(p, dtype=torch.float64).detach() for name, p in parameters.items()}
    return sums, add_clipped(sums, parameters, model.losses, batch, Clipping()).norms


def moved(batch: Any) -> Any:
    return type(batch)(*(tensor.to(DEVICE) for tensor in vars(batch).values()))


@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_the_cpu(name: str) -> None:
    torch.manual_seed(1)
    model, batch = MODELS[name](), batch_for(name, 7)
    exact, norms = clipped_sums(model, batch)
    found, there = clipped_sums(model.to(DEVICE), moved(batch))
    assert all(isinstance(total, OnPretend) for total in found.values())
    assert torch.allclose(there.cpu(), norms, rtol=1e-5)
    for name in exact:
        assert torch.allclose(found[name].cpu(), exact[name], atol=1e-5)
