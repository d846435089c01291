"""Layers and forms of models that people write, on another device: their clipped sums are those of plain autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.gradients.clipping import Clipping
from tests.device.pretend import DEVICE
from tests.gradients.forms import FORMS, Form, Model, histories
from tests.gradients.layers import Row, layers
from tests.one_micro_batch import add_clipped, one_by_one

pytestmark = pytest.mark.full

CLIPPING = Clipping("flat", 0.5)
Losses = Callable[[Any, Tensor], Tensor]


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def clipped_sums(model: nn.Module, losses: Losses, users: Tensor) -> dict[str, Tensor]:
    """Return the clipped sums of the device, on the CPU."""
    model, users = model.to(DEVICE), users.to(DEVICE)
    parameters = trained(model)
    sums = {name: torch.zeros_like(p, dtype=torch.float64).detach() for name, p in parameters.items()}
    add_clipped(sums, parameters, lambda batch: losses(model, batch), users, CLIPPING)
    return {name: total.cpu() for name, total in sums.items()}


def differ(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    size = torch.cat([total.flatten() for total in wanted.values()]).norm()
    return [name for name, total in wanted.items() if not (found[name] - total).norm() <= 1e-4 * size]


NOT_PRETENDED = {  # parts of names, and what the pretend device has not
    "packed sequences": "sizes of batches that stay on the CPU",
    "view_as_complex": "numbers that are only marked as conjugated",
}


def case(name: str, value: Any) -> Any:
    lacks = [why for part, why in NOT_PRETENDED.items() if part in name and DEVICE.type == "pretend"]
    return pytest.param(value, id=name, marks=[pytest.mark.skip(reason=f"needs a GPU: {why}") for why in lacks])


FORMS_HERE = {f"{verdict}, {name}": form for verdict in ("exact", "alone") for name, form in FORMS[verdict].items()}


@pytest.mark.filterwarnings("ignore:.*each user's gradient is taken alone")
@pytest.mark.parametrize("form", [case(*each) for each in FORMS_HERE.items()])
def test_forms_are_exact(form: Form) -> None:
    model, users = Model(form), histories()
    wanted = one_by_one(trained(model), model.losses, users, CLIPPING)
    assert not differ(clipped_sums(model, Model.losses, users), wanted)


@pytest.mark.filterwarnings("ignore:.*each user's gradient is taken alone")
@pytest.mark.parametrize("row", [case(", ".join(name), row) for name, row in layers().items()])
def test_layers_are_exact_with_all_their_options(row: Row) -> None:
    for place, of in enumerate(row):
        torch.manual_seed(place)
        layer, users = of.make(), of.users()
        wanted = one_by_one(trained(layer), partial(of.losses, layer), users, CLIPPING)
        assert not differ(clipped_sums(layer, of.losses, users), wanted), layer
