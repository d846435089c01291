"""The variants of DP-SGD with hooks that LazyDP is measured beside sum the same clipped gradients as dprec."""

from __future__ import annotations

import pytest
import torch

from dprec.benchmarks.table_work.hooked import HookedGradient, Materialised, Reweighted
from dprec.benchmarks.table_work.steady import LookUps
from dprec.benchmarks.table_work.steps import SYSTEMS, Step
from dprec.data.draws.batch import ClickBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows
from dprec.models import DLRM
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.step import PrivateGradient

pytestmark = pytest.mark.full


def model() -> DLRM:
    torch.manual_seed(0)
    return DLRM(13, [9, 30], dim=4, bottom=[6], top=[5, 3], optimizer="sgd", weight_decay=0.0).double()


def batch(pooling: int) -> ClickBatch:
    drawn = LookUps(12, tables=2, ids=9, pooling=pooling, hot=0.3).batch(1)
    drawn.categories[0, 0, 1:] = -1  # a shorter bag
    drawn.numbers, drawn.clicked = drawn.numbers.double(), drawn.clicked.double()
    return drawn


@pytest.mark.parametrize("pooling", [1, 6])
@pytest.mark.parametrize("kind", [Materialised, Reweighted])
@pytest.mark.parametrize("max_norm", [0.3, 100.0])
def test_the_clipped_sum_is_the_same(kind: type[HookedGradient], pooling: int, max_norm: float) -> None:
    whole, learner = batch(pooling), model()
    parameters, clipping = dict(learner.named_parameters()), Clipping("flat", max_norm)
    parts = [whole.select(range(5)), whole.select(range(5, 12))]
    for table in learner.tables.tables:
        table.sparse = True  # type: ignore[union-attr]
    kind(learner, clipping, 0.0, 7.0, GaussianNoise())(parameters, learner.losses, parts)
    found = {name: p.grad.to_dense() for name, p in parameters.items() if p.grad is not None}
    ours = PrivateGradient(clipping, StepNoise(GaussianNoise(), 0.0, 7.0), padding_rows(learner))
    ours(parameters, learner.losses, parts)
    for name, parameter in parameters.items():
        assert torch.allclose(found[name], parameter.grad, rtol=1e-9, atol=1e-12), name  # type: ignore[arg-type]


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_step_says_where_its_time_went(system: str) -> None:
    torch.manual_seed(0)
    learner = DLRM(13, [40, 40], dim=4, bottom=[6], top=[5], optimizer="sgd", weight_decay=0.0)
    step = Step(system, learner, LookUps(16, tables=2, ids=40, pooling=2))
    before = {name: p.detach().clone() for name, p in learner.named_parameters()}
    for _ in range(2):
        step.fetch()
        step()
    assert any(not torch.equal(p, before[name]) for name, p in learner.named_parameters())
    for taken in step.taken:
        assert taken["forward_backward"] > 0
        assert (taken.get("norms", 0.0) > 0) == (system != "SGD")
        assert system == "DP-SGD, unfused" or taken["tables"] > 0
