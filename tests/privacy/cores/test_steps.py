"""Steps of several processes are those of one."""

from __future__ import annotations

import copy
from multiprocessing import active_children
from typing import Any

import pytest
import torch
from torch import Tensor

from dprec.data import SequenceBatch
from dprec.models import Transformer
from dprec.privacy.cores import OneCore
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
    cores.close()


@forks
def test_the_loss_that_is_told_is_that_of_all_users() -> None:
    model = model_of()
    cores = all_cores_of(model)
    gradient, parameters = gradient_by(model, cores), dict(model.named_parameters())
    expected = torch.cat([model.losses(part) for part in batch_of()]).mean().item()
    for _ in range(2):
        assert gradient(parameters, model.losses, batch_of()) == pytest.approx(expected, rel=1e-5)
    cores.close()


@forks
def test_a_batch_that_draws_nobody_is_a_step() -> None:
    model = model_of()
    cores = all_cores_of(model)
    gradient, parameters = gradient_by(model, cores), dict(model.named_parameters())
    for batch in (batch_of(), [], batch_of(sizes=[1]), []):
        gradient(parameters, model.losses, batch)
    assert all(float(p.grad.abs().sum()) == 0 for p in parameters.values() if p.grad is not None)
    cores.close()


class Overflowing(Transformer):
    """The gradient of whoever has met item 7 is not finite."""

    rows_alone = True

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
    cores.close()
