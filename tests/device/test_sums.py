"""Clipped sums of every model in bfloat16 on another device are those of the CPU; test_training.py has float32."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from itertools import islice
from typing import Any

import pytest
import torch

from dprec.gradients.clipping import Clipping
from dprec.gradients.uses.batches import batch_tensors
from tests.device.pretend import DEVICE
from tests.kernels.interpreter import INTERPRETED
from tests.one_micro_batch import clipped_sums, off
from tests.zoo.recommenders import MODELS, batch_for

pytestmark = [pytest.mark.usefixtures("by_kernels"), pytest.mark.full]


def moved(batch: Any) -> Any:
    return type(batch)(*(tensor.to(DEVICE) for tensor in batch_tensors(batch)))


def coarse(batch: Any) -> Any:
    return type(batch)(*(t.bfloat16() if t.is_floating_point() else t for t in batch_tensors(batch)))


@pytest.mark.skipif(INTERPRETED, reason="takes minutes there, and kernels take float32")
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("name", MODELS)
def test_sums_in_bfloat16_are_those_of_the_cpu_as_far_as_it_can_tell(name: str, precision: str) -> None:
    """In two of three models: rounding may put a number on the other side of a kink."""
    near = (seed for seed in (1, 2, 3) if _off(name, precision, seed) < 0.03)
    assert len(list(islice(near, 2))) == 2  # the third is asked where one of two was off


def _off(name: str, precision: str, seed: int) -> float:
    torch.manual_seed(seed)
    model, batch = MODELS[name](), batch_for(name, 7)
    if precision == "bf16-true":
        model, batch = model.bfloat16(), coarse(batch)

    def mixed(device: str) -> Any:
        return torch.autocast(device, torch.bfloat16) if precision == "bf16-mixed" else nullcontext()

    with mixed("cpu"):
        exact = clipped_sums(copy.deepcopy(model), [batch], Clipping())
    with mixed(DEVICE.type):
        found = clipped_sums(model.to(DEVICE), [moved(batch)], Clipping())
    return off({name: total.cpu() for name, total in found.items()}, exact)
