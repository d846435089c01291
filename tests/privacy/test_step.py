"""The private gradient: its denominator, its noise, its padding row, its independence of the split."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.gradients.clipping import Clipping
from dprec.gradients.parameters import padding_rows
from dprec.gradients.uses.batches import Alone
from dprec.noise.gaussian import Ahead, GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.cores import OneCore
from dprec.privacy.cores.adding import Adding
from dprec.privacy.private_gradient import PrivateGradient
from tests.zoo.recommenders import MODELS, batch_for, batch_of, rows_of


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
        def _normals(self, count: int, out: Tensor | None = None) -> Tensor:
            happened.append("draw")
            return super()._normals(count, out)

        def add_all_(self, tensors: Sequence[Tensor], std: float, ahead: Ahead | None = None) -> None:
            happened.append("add")
            super().add_all_(tensors, std, ahead)

    class Waiting(OneCore):
        def add(self, adding: Adding, parts: Sequence[Any], alone: Alone, meanwhile: Any) -> list[Tensor]:
            assert meanwhile()
            return super().add(adding, parts, alone, meanwhile)

    for cores, expected in ((OneCore(), ["record", "add", "draw"]), (Waiting(), ["record", "draw", "add"])):
        private = PrivateGradient(Clipping(), StepNoise(Noise(), 1.0, 1.0), cores=cores)
        gradient_of(MODELS["layer-twice"](), [], partial(private, record=lambda: happened.append("record")))
        assert happened[:3] == expected
        happened.clear()
