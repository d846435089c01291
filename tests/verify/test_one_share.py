"""Models that keep users apart are not stopped, whatever else they do."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.models import GRU, LSTM
from tests.privacy.private_steps import look_at
from tests.zoo.recommenders import MODELS, Zoo, batch_for, batch_of, recurrent, transformer


@pytest.mark.parametrize("name", MODELS)
def test_models_that_keep_users_apart_pass(name: str) -> None:
    look_at(MODELS[name](), batch_for(name, 4))


def test_dropout_between_recurrent_layers_is_no_mixing() -> None:
    look_at(recurrent(GRU, layers=2, dropout=0.5), batch_of(4))
    look_at(recurrent(LSTM, layers=2, dropout=0.5), batch_of(4))


class AtAKink(Zoo):
    """Where rounding decides which way a kink goes, and rounding depends on the shape of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(6))

    def encode(self, history: Tensor) -> Tensor:
        rounding = 1e-9 if len(history) > 1 else -1e-9
        return self.mix(self.embedding(history)) + (self.gate + rounding).abs()


def test_a_kink_is_no_mixing_and_weights_are_as_before() -> None:
    """They are moved to see whether a difference stays."""
    model = AtAKink()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    look_at(model, batch_of(9))
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


class RandomNegatives(Zoo):
    """Negatives of each user's own, drawn for the whole batch at once."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        hidden = self.encode(batch.history)
        negatives = torch.randint(1, self.items, (*batch.history.shape, 2))
        wanted = (hidden * self.embedding(batch.targets)).sum(-1)
        others = (hidden.unsqueeze(2) * self.embedding(negatives)).sum(-1)
        return ((F.softplus(-wanted) + F.softplus(others).sum(-1)) * (batch.targets != 0)).sum(1)


def test_random_negatives_are_no_mixing() -> None:
    first = batch_of(6).history[[0, 2, 3], :1]
    look_at(RandomNegatives(), SequenceBatch(first.repeat(1, 4), first.repeat(1, 4)))


class ZeroGradients(Zoo):
    """Two items that are alike: what BPR learns from one against the other is rounding."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        hidden = self.encode(batch.history)
        items = self.embedding(batch.targets)
        return F.softplus((hidden * items).sum(-1) - (hidden * items.clone()).sum(-1)).sum(1)


def test_gradients_that_are_rounding_alone_are_no_mixing() -> None:
    look_at(ZeroGradients(), batch_of(6))


def test_dropout_is_no_mixing_and_stays_on_afterwards() -> None:
    model = transformer(dropout=0.5).train()
    state = torch.get_rng_state()
    look_at(model, batch_of(4))
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
