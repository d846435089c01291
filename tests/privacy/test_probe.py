"""A model in which users touch each other is refused before its first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.errors import MixedUsers
from dprec.privacy.probe import probe
from tests.models.zoo import MODELS, Zoo, batch_of, transformer


class InBatchNegatives(Zoo):
    """Other users' targets as negatives, written so that no single operation gives it away."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        user = self.encode(batch.history)[:, 0]
        item = self.embedding(batch.targets[:, 0].clamp(min=1))
        logits = torch.einsum("ud,id->ui", user, item)
        return -F.log_softmax(logits, dim=1).diagonal() * (batch.history[:, 0] >= 0)


class StatisticsOfUsers(Zoo):
    """BatchNorm without parameters: no rule of a parameter is ever asked."""

    def __init__(self) -> None:
        super().__init__()
        self.normal = nn.BatchNorm1d(6, affine=False)

    def encode(self, history: Tensor) -> Tensor:
        return self.mix(self.normal(self.embedding(history).mT).mT)


class CountsUsers(Zoo):
    """A buffer that remembers what it saw and would be released as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def losses(self, batch: SequenceBatch) -> Tensor:
        self.seen += batch.history.sum()
        return super().losses(batch)


def run(model: Any, users: int = 4) -> None:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    probe(model, parameters, model.losses, batch_of(users))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (InBatchNegatives, "parameter"),
        (StatisticsOfUsers, "buffer|parameter"),
        (CountsUsers, "buffer 'seen'"),
    ],
)
def test_users_that_touch_each_other_are_found(model: Any, message: str) -> None:
    with pytest.raises(MixedUsers, match=message):
        run(model())


@pytest.mark.parametrize("name", MODELS)
def test_models_that_keep_users_apart_pass(name: str) -> None:
    run(MODELS[name]())


def test_dropout_is_no_mixing_and_stays_on_afterwards() -> None:
    model = transformer(dropout=0.5).train()
    state = torch.get_rng_state()
    run(model)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
