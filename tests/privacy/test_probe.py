"""A model in which users touch each other is refused before its first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.data import SequenceBatch
from dprec.errors import MixedUsers, UncoveredUse
from dprec.models import GRU, LSTM
from dprec.privacy.probe import probe
from dprec_kernels import catalogue_softmax
from tests.models.zoo import MODELS, Zoo, batch_for, batch_of, recurrent, transformer


class InBatchNegatives(Zoo):
    """Other users' targets as negatives, written so that no operation gives it away by its name."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        user = self.encode(batch.history)[:, 0]
        item = self.embedding(batch.targets[:, 0].clamp(min=1))
        logits = user.sum(1, keepdim=True) * item.sum(1)  # broadcasting pairs every user with every other
        return -F.log_softmax(logits, dim=1)[:, 0]


class MeanOverPadding(Zoo):
    """The longest history of the batch decides what everybody's loss is divided by."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        return catalogue_softmax(self.encode(batch.history), self.item_table, batch.targets).mean(1)


class SilentAtFirst(InBatchNegatives):
    """The mixing hides behind a gate that starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def losses(self, batch: SequenceBatch) -> Tensor:
        return Zoo.losses(self, batch) + self.gate * self.gate * super().losses(batch)


class OffsetByPlace(Zoo):
    """A parameter for each place in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(8, 6))

    def encode(self, history: Tensor) -> Tensor:
        return self.mix(self.embedding(history) + self.places[: len(history)].unsqueeze(1))


class KeepsAMean(Zoo):
    """A frozen parameter written behind autograd's back."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(6), requires_grad=False)

    def encode(self, history: Tensor) -> Tensor:
        x = self.embedding(history)
        self.mean.data.copy_(x.detach().mean((0, 1)))
        return self.mix(x)


class CountsUsers(Zoo):
    """A buffer that remembers what it saw and would be released as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def losses(self, batch: SequenceBatch) -> Tensor:
        self.seen += batch.history.sum()
        return super().losses(batch)


def run(model: Any, batch: Any = None) -> None:
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    probe(model, parameters, model.losses, batch_of(4) if batch is None else batch)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (InBatchNegatives, "parameter"),
        (MeanOverPadding, "padding"),
        (SilentAtFirst, "parameter"),
        (OffsetByPlace, "place in the batch"),
        (CountsUsers, "'seen' changes"),
        (KeepsAMean, "'mean' changes"),
    ],
)
def test_users_that_touch_each_other_are_found(model: Any, message: str) -> None:
    with pytest.raises((MixedUsers, UncoveredUse), match=message):
        run(model())


def test_dropout_between_recurrent_layers_is_no_mixing() -> None:
    run(recurrent(GRU, layers=2, dropout=0.5))
    run(recurrent(LSTM, layers=2, dropout=0.5))


@pytest.mark.parametrize("name", MODELS)
def test_models_that_keep_users_apart_pass(name: str) -> None:
    run(MODELS[name](), batch_for(name, 4))


class AtAKink(Zoo):
    """Where rounding decides which way a kink goes, and rounding depends on the shape of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(6))

    def encode(self, history: Tensor) -> Tensor:
        rounding = 1e-9 if len(history) > 1 else -1e-9
        return self.mix(self.embedding(history)) + (self.gate + rounding).abs()


def test_a_kink_is_no_mixing() -> None:
    model = AtAKink()
    probe(model, dict(model.named_parameters()), model.losses, batch_of(5))


class RandomNegatives(Zoo):
    """Negatives of each user's own, drawn for the whole batch at once."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        hidden = self.encode(batch.history)
        negatives = torch.randint(1, self.items, (*batch.history.shape, 2))
        wanted = (hidden * self.embedding(batch.targets)).sum(-1)
        others = (hidden.unsqueeze(2) * self.embedding(negatives)).sum(-1)
        return ((F.softplus(-wanted) + F.softplus(others).sum(-1)) * (batch.targets != 0)).sum(1)


def test_random_negatives_are_no_mixing() -> None:
    model = RandomNegatives()
    parameters = dict(model.named_parameters())
    first = batch_of(6).history[[0, 2, 3], :1]
    batch = SequenceBatch(first.repeat(1, 4), first.repeat(1, 4))
    probe(model, parameters, model.losses, batch)


def test_the_weights_are_as_before() -> None:
    model = transformer()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    run(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_dropout_is_no_mixing_and_stays_on_afterwards() -> None:
    model = transformer(dropout=0.5).train()
    state = torch.get_rng_state()
    run(model)
    assert model.training
    assert torch.equal(state, torch.get_rng_state())
