"""Batches of a fixed size: a history that is replaced by an empty one moves a sum by one share, whatever the model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.data import SequenceBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import trained_parameters
from dprec.models import DPFormer, Transformer
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.sparsity import AdaFEST
from dprec.sparsity.rows.kinds import BatchRows
from dprec.sparsity.rows.row_rules import RowRules
from dprec.training.callback import Privacy
from tests.privacy import support
from tests.zoo.recommenders import ITEMS, LENGTH, MODELS, Zoo, batch_of


class LastTarget(Zoo):
    """As the guide's own model: the cross-entropy of the last target, which is 0 for a user who has none."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        last = (batch.history != 0).sum(1, keepdim=True).clamp(min=1) - 1
        states = self.encode(batch.history)[torch.arange(len(batch)), last.squeeze(1)]
        logits = F.linear(states, self.embedding.weight)
        return F.cross_entropy(logits, batch.targets.gather(1, last).squeeze(1), reduction="none")


def summed(model: Any, batch: SequenceBatch, mode: Any) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    PrivateGradient(Clipping(mode), StepNoise(GaussianNoise(), 0.0, 1.0))(parameters, model.losses, [batch])
    return {name: p.grad.double() for name, p in parameters.items() if p.grad is not None}


@pytest.mark.parametrize("mode", ["flat", "auto-v", "auto-s"])
@pytest.mark.parametrize("make", [LastTarget, *(MODELS[name] for name in ("functional-tying", "transformer", "gru"))])
def test_an_empty_history_adds_nothing(make: Any, mode: Any) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        model, nothing = make(), torch.zeros(1, LENGTH, dtype=torch.int64)
        alone = summed(model, SequenceBatch(nothing, nothing), mode)
        assert all((value == 0).all() for value in alone.values())
        batch = batch_of(4, seed=seed)
        batch.history[0, 0] = batch.targets[0, 0] = 1 + seed % (ITEMS - 1)
        replaced = SequenceBatch(batch.history.clone(), batch.targets.clone())
        replaced.history[0] = replaced.targets[0] = 0
        a, b = summed(model, batch, mode), summed(model, replaced, mode)
        assert float(sum((a[name] - b[name]).square().sum() for name in a) ** 0.5) <= 1 + 1e-4


class Keeps(AdaFEST):
    """Keeps how many users count for each row."""

    def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor:
        self.users = torch.bincount(batch.row, minlength=self.space.size)
        return super().choose(batch, among)


def counted(make: Any, batch: SequenceBatch) -> Tensor:
    """How many users count for each position."""
    torch.manual_seed(0)
    model, strategy = make(ITEMS, max_length=LENGTH, dim=4, negatives=5), Keeps(threshold=1.0, tables="*", least_rows=0)
    parameters, noise = trained_parameters(model), StepNoise(GaussianNoise(seed=1), 1.0, len(batch))
    rules = RowRules([strategy])
    rules.begin(model, parameters, noise, 0.25)
    PrivateGradient(Clipping("auto-v"), noise, rules=rules)(parameters, model.losses, [batch])
    return strategy.users[-LENGTH:]


@pytest.mark.parametrize("make", [Transformer, DPFormer])
def test_an_empty_history_counts_for_no_row(make: Any) -> None:
    """Whatever the model reads for it, such as the first position: a count moves by the share of who has one."""
    batch = batch_of(4, seed=0)
    for empty in range(5):
        lengths = (batch.history != 0).sum(1)
        assert counted(make, batch).tolist() == [int((lengths > place).sum()) for place in range(LENGTH)]
        if empty < 4:
            batch.history[empty] = batch.targets[empty] = 0


def test_the_sentence_says_that_an_empty_history_adds_nothing() -> None:
    privacy = Privacy(noise_multiplier=1.0)
    support.fit(privacy, support.data(sampling="shuffle"))
    assert "by an empty one, which adds nothing to any step" in privacy.guarantee()


@pytest.mark.full
@pytest.mark.parametrize(("precision", "said"), [("bf16-mixed", True), ("32-true", False)])
def test_a_run_in_bfloat16_says_that_others_rounding_is_not_covered(precision: Any, said: bool) -> None:
    privacy = Privacy(noise_multiplier=1.0)
    support.fit(privacy, precision=precision, max_steps=2)
    assert ("roundings to bfloat16" in privacy.guarantee().split("not covered")[1]) == said
