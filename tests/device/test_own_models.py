"""Layers and forms of models that people write, on another device: their clipped sums are those of plain autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dprec.gradients.clipping import Clipping
from tests.device.pretend import DEVICE
from tests.one_micro_batch import clipped_sums, off, one_by_one
from tests.zoo import Small, forms, layers, tagged  # noqa: F401 which enter theirs

pytestmark = pytest.mark.full
CLIPPING = Clipping("flat", 0.5)
NOT_PRETENDED = {  # parts of names, and what the pretend device has not
    "packed sequences": "sizes of batches that stay on the CPU",
    "`DPRNN`": "parameters that stay the same objects as they move there, which two names of Opacus's share",
    "view_as_complex": "numbers that are only marked as conjugated",
    "sparse": "sparse matrices that are made of numbers of the CPU",
}


def case(small: Small) -> Any:
    lacks = [why for part, why in NOT_PRETENDED.items() if part in small.name and DEVICE.type == "pretend"]
    return pytest.param(small, id=small.name, marks=[pytest.mark.skip(reason=f"needs a GPU: {why}") for why in lacks])


WRITTEN = [*tagged("form", "exact").values(), *tagged("form", "alone").values(), *tagged("layer").values()]


@pytest.mark.filterwarnings("ignore:.*each user's gradient is taken alone")
@pytest.mark.parametrize("small", map(case, WRITTEN))
def test_sums_are_exact(small: Small) -> None:
    for place, (make, batch) in enumerate(small.variants):
        torch.manual_seed(place)
        model, users = make(), batch()
        wanted = one_by_one(model, users, CLIPPING)
        found = clipped_sums(model.to(DEVICE), [users.to(DEVICE)], CLIPPING)
        assert off({name: total.cpu() for name, total in found.items()}, wanted) <= 1e-4, model
