"""A user's share has the same bits in any company of the same padded length, for every model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.gradients import norms
from dprec.gradients.clipping import batch_gradients
from dprec.gradients.contributions import Dense
from tests.zoo.recommenders import MODELS, batch_for

COMPANIES = ([], [9, 3], [*range(6, 40)])  # who else is there, before and after the user
USER = 5


def shares(model: nn.Module, batch: Any, place: int) -> dict[str, Tensor]:
    """Return what the user at this place of a batch adds to each gradient, built."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    made = batch_gradients(parameters, model.losses, batch)  # type: ignore[arg-type]
    found = {"loss": made.losses[place]}
    for name, uses in made.contributions.items():
        shape = parameters[name].shape
        (built,) = norms.built_once(uses, made.batch_size, shape, norms.KEPT)
        assert isinstance(built, Dense)
        found[name] = built.values[place]
        found[f"norm of {name}"] = norms.squared_norms(uses, made.batch_size, shape)[place]
    return found


def differing(model: nn.Module, everybody: Any) -> set[str]:
    """Return the names of what differs from company to company."""
    off: set[str] = set()
    if hasattr(everybody, "own_length"):
        everybody.own_length = True  # as the data module pads them
    alone = shares(model, everybody.select([USER]), 0)
    for others in COMPANIES:
        for place in {0, len(others)}:
            own = shares(model, everybody.select([*others[:place], USER, *others[place:]]), place)
            assert own.keys() == alone.keys()
            off |= {name for name in own if not torch.equal(own[name], alone[name])}
    return off


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", MODELS)
def test_every_model(name: str, threads: int) -> None:
    torch.manual_seed(1)
    model, before = MODELS[name](), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert differing(model, batch_for(name, 70)) == set()
    finally:
        torch.set_num_threads(before)
