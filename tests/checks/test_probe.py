"""A model in which users touch each other is refused before its first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dprec.checks.probe import Probe
from dprec.data import SequenceBatch
from dprec.errors import MixedUsers, UncoveredUse
from dprec.gradients.uses.batches import select_users
from dprec.models import GRU, LSTM
from dprec_kernels import catalogue_softmax
from tests.models.zoo import ITEMS, MODELS, Zoo, batch_for, batch_of, recurrent, transformer
from tests.privacy.support import probe_batch


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


class PositionOfUser(Zoo):
    """Position encodings for time-first batches, met by one with users first: a user's place decides what is added."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("encodings", torch.randn(20, 1, 6))

    def encode(self, history: Tensor) -> Tensor:
        x = self.embedding(history)
        return self.mix(x + self.encodings[: x.size(0)])


class NextUsersHistory(Zoo):
    """Every user's targets with the history of who stands before."""

    def encode(self, history: Tensor) -> Tensor:
        return super().encode(F.pad(history, (0, 0, 1, -1)))


class KeepsCounts(Zoo):
    """A buffer that no checkpoint holds, but that later losses see."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(self.items), persistent=False)

    def losses(self, batch: SequenceBatch) -> Tensor:
        self.counts.data += torch.bincount(batch.targets.flatten(), minlength=self.items)
        return super().losses(batch) * float(1 + 1e-6 * self.counts[1])


class KeepsAnAttribute(Zoo):
    """The same in a plain attribute."""

    counts: Any = None

    def losses(self, batch: SequenceBatch) -> Tensor:
        self.counts = torch.bincount(batch.targets.flatten(), minlength=self.items)
        return super().losses(batch)


class NoNumberAtPadding(Zoo):
    """Alone, nobody is padded; among others, padding makes a gradient of 0 · ∞."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        real = batch.targets != 0
        size = self.encode(batch.history).square().sum(2) * real
        return super().losses(batch) + torch.where(real, size.sqrt(), 0.0).sum(1)


def run(model: Any, batch: Any = None) -> None:
    probe_batch(model, batch_of(4) if batch is None else batch)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (InBatchNegatives, "parameter"),
        (MeanOverPadding, "padding"),
        (NoNumberAtPadding, "padding"),
        (SilentAtFirst, "parameter"),
        (OffsetByPlace, "place in the batch"),
        (CountsUsers, "'seen' changes"),
        (KeepsAMean, "'mean' changes"),
        (PositionOfUser, "parameter"),
        (NextUsersHistory, "parameter"),
        (KeepsCounts, "'counts' changes"),
        (KeepsAnAttribute, "'counts' changes"),
    ],
)
def test_users_that_touch_each_other_are_found(model: Any, message: str) -> None:
    with pytest.raises((MixedUsers, UncoveredUse), match=message):
        run(model())


def test_padding_is_probed_as_soon_as_somebody_is_padded() -> None:
    model, look = MeanOverPadding(), Probe()
    alike = SequenceBatch(torch.ones(5, 3, dtype=torch.long), torch.ones(5, 3, dtype=torch.long))
    padded = batch_of(4)
    look(model, model.losses, lambda users: [], [])
    look(model, model.losses, lambda users: [select_users(alike, users)], range(5))  # nobody is padded
    with pytest.raises((MixedUsers, UncoveredUse), match="padding"):
        look(model, model.losses, lambda users: [select_users(padded, users)], range(4))


class ManyAreScaled(Zoo):
    """What only a micro-batch of several users shows."""

    def losses(self, batch: SequenceBatch) -> Tensor:
        return super().losses(batch) / max(4, len(batch))


class ManyGoUnseen(Zoo):
    def losses(self, batch: SequenceBatch) -> Tensor:
        each = super().losses(batch)
        if len(batch) > 4:
            each = each / nn.Parameter(each.detach(), requires_grad=False).max().clamp(min=1e6)
        return each


@pytest.mark.parametrize("model", [ManyAreScaled, ManyGoUnseen])
def test_a_full_micro_batch_is_probed_as_well(model: Any) -> None:
    own, batch = model(), batch_of(9)
    Probe()(own, own.losses, lambda users: [select_users(batch, users)], range(4))  # as many as do not show it
    with pytest.raises((MixedUsers, UncoveredUse)):
        Probe()(own, own.losses, lambda users: [select_users(batch, users)], range(9))


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
    model, batch = AtAKink(), batch_of(9)
    probe_batch(model, batch_of(5))
    Probe()(model, model.losses, lambda users: [select_users(batch, users)], range(9))


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
    first = batch_of(6).history[[0, 2, 3], :1]
    batch = SequenceBatch(first.repeat(1, 4), first.repeat(1, 4))
    probe_batch(model, batch)


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


class AwakeLater(InBatchNegatives):
    """Mixing behind rows that start at zero, and that nobody reads before another parameter has moved."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))
        self.late = nn.Embedding(self.items, 1)
        nn.init.zeros_(self.late.weight)

    def losses(self, batch: SequenceBatch) -> Tensor:
        own = Zoo.losses(self, batch)
        own = own + self.gate * own.detach()
        if float(self.gate.detach()) != 0:
            late = self.late(batch.targets[:, 0])[:, 0]
            own = own + late * late * super().losses(batch)
        return own


class ByAnotherName(InBatchNegatives):
    """Mixing behind a row that is read through a tensor that shares the table's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.Embedding(self.items, 1)
        nn.init.zeros_(self.late.weight)
        self.names = (self.late.weight.detach(),)

    def losses(self, batch: SequenceBatch) -> Tensor:
        own = Zoo.losses(self, batch) + self.late(batch.targets[:, 0])[:, 0]
        return own + 10 * self.names[0][ITEMS - 1].sum() * super().losses(batch)


@pytest.mark.parametrize("model", [AwakeLater, ByAnotherName])
def test_mixing_behind_rows_that_nobody_read_at_first_is_found(model: Any) -> None:
    """Of a large table, rows are moved once they were read, or all of them where it has another name."""
    histories = torch.randint(1, ITEMS - 1, (4, 3), generator=torch.Generator().manual_seed(0))
    with pytest.raises((MixedUsers, UncoveredUse), match="depends on who else"):
        run(model(), SequenceBatch(histories, histories))
