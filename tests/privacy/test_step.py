"""The private gradient: its denominator, noise, padding row, independence of the split; histories that are empty."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows, trained_parameters
from dprec.models import DPFormer, Transformer
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.private_gradient import PrivateGradient
from dprec.privacy.user_losses import UserLosses
from dprec.sparsity import AdaFEST
from dprec.sparsity.rows.kinds import BatchRows
from dprec.sparsity.rows.table_strategies import TableStrategies
from dprec.training.callback import Privacy
from tests.privacy import support
from tests.zoo.recommenders import ITEMS, LENGTH, MODELS, Zoo, batch_for, batch_of, rows_of


def gradient_of(model: Any, batch: Sequence[SequenceBatch], rule: PrivateGradient) -> dict[str, Tensor]:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rule(parameters, model.losses, batch)
    return {name: p.grad.clone() for name, p in parameters.items()}


def rule(
    sigma: float = 0.0, expected: float = 10.0, seed: int = 5, max_norm: float = 1.0, **options: Any
) -> PrivateGradient:
    return PrivateGradient(Clipping("auto-v", max_norm), StepNoise(GaussianNoise(seed), sigma, expected), **options)


def test_the_sum_is_divided_by_the_expected_batch_whatever_was_drawn() -> None:
    model = MODELS["transformer"]().double()
    user = rows_of(batch_of(1), [0])
    one = gradient_of(model, [user], rule())
    twice = gradient_of(model, [user, user], rule())
    for name, gradient in one.items():
        assert torch.allclose(twice[name], 2 * gradient)
    assert sum(g.square().sum() for g in one.values()).sqrt() == pytest.approx(1 / 10, rel=1e-5)


@pytest.mark.parametrize(
    "batch", [[], [SequenceBatch(torch.zeros(0, 3, dtype=torch.long), torch.zeros(0, 3, dtype=torch.long))]]
)
def test_an_empty_draw_is_a_step_of_pure_noise(batch: list[SequenceBatch]) -> None:
    model = MODELS["transformer"]()
    gradients = gradient_of(model, batch, rule(sigma=2.0, expected=4.0, max_norm=3.0))
    values = torch.cat([g.flatten() for g in gradients.values()])
    assert values.std() == pytest.approx(2.0 * 3.0 / 4.0, rel=0.1)
    assert (values != 0).all()


def test_the_loss_that_is_told_is_the_mean_over_users_whatever_the_split() -> None:
    model, batch = MODELS["transformer"](), batch_of(5)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for split in ([0, 1, 2, 3, 4],), ([0], [1, 2, 3, 4]), ([0, 1], [2], [3, 4]):
        told = rule()(parameters, model.losses, [rows_of(batch, users) for users in split])
        assert told == pytest.approx(float(model.losses(batch).detach().mean()), rel=1e-5)


def test_one_draw_of_noise_whatever_the_split() -> None:
    model, batch = MODELS["transformer"]().double(), batch_of(6)
    whole = gradient_of(model, [batch], rule(sigma=1.0))
    split = gradient_of(model, [rows_of(batch, slice(i, i + 2)) for i in (0, 2, 4)], rule(sigma=1.0))
    assert all(torch.allclose(whole[name], split[name], atol=1e-12) for name in whole)


def test_parameters_that_nobody_used_get_noise_too() -> None:
    gradients = gradient_of(MODELS["uneven-use"](), [batch_of(3)], rule(sigma=1.0))
    assert (gradients["unused"] != 0).all()


@pytest.mark.parametrize("name", ["transformer", "transformer-untied", "functional-tying", "dlrm", "pctr"])
def test_the_padding_row_gets_neither_gradient_nor_noise(name: str) -> None:
    model = MODELS[name]()
    gradients = gradient_of(model, [batch_for(name, 4)], rule(sigma=1.0, padding=padding_rows(model)))
    for table in (declared := {name for name, rows in padding_rows(model).items() if rows == (0,)}):
        assert (gradients[table][0] == 0).all()
        assert (gradients[table][1:] != 0).all()
    tables = [n for n, part in model.named_modules() if isinstance(part, (nn.Embedding, nn.EmbeddingBag))]
    assert {f"{table}.weight" for table in tables if "positions" not in table} == declared


def test_a_half_precision_model_is_summed_and_noised_in_float64() -> None:
    model = MODELS["layer-twice"]().bfloat16()
    private = rule(sigma=1.0)
    gradients = gradient_of(model, [batch_of(3)], private)
    assert all(g.dtype == torch.bfloat16 for g in gradients.values())
    assert all(total.dtype == torch.float64 for total in private._sums.values())


def test_what_is_released_is_recorded_before_its_noise_is_drawn() -> None:
    happened: list[str] = []

    class Noise(GaussianNoise):
        def _normals(self, count: int) -> Tensor:
            happened.append("draw")
            return super()._normals(count)

    private = PrivateGradient(Clipping(), StepNoise(Noise(), 1.0, 1.0))
    gradient_of(MODELS["layer-twice"](), [], partial(private, charge=lambda: happened.append("charge")))
    assert happened[:2] == ["charge", "draw"]


class LastTarget(Zoo):
    """As the guide's own model: the cross-entropy of the last target, which is 0 for a user who has none."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        last = (batch.history != 0).sum(1, keepdim=True).clamp(min=1) - 1
        states = self.encode(batch.history)[torch.arange(len(batch)), last.squeeze(1)]
        logits = F.linear(states, self.embedding.weight)
        return F.cross_entropy(logits, batch.targets.gather(1, last).squeeze(1), reduction="none")


def summed(model: Any, batch: SequenceBatch, mode: Any) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    losses = UserLosses(model, model.losses)
    PrivateGradient(Clipping(mode), StepNoise(GaussianNoise(), 0.0, 1.0))(parameters, losses, [batch])
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
    strategies = TableStrategies([strategy])
    strategies.begin(model, parameters, noise, 0.25)
    PrivateGradient(Clipping("auto-v"), noise, strategies=strategies)(parameters, model.losses, [batch])
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
