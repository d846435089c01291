"""Mistakes that authors make in good faith: each stops a run before it releases what it should not, in one line.

The author of a model is honest and can be wrong: docs/privacy.md has the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dprec
from dprec.errors import UserError

USERS, ITEMS, DIM = 60, 9, 4


def people() -> list[Tensor]:
    """Histories of two to six items."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randint(1, ITEMS, (2 + user % 5,), generator=draw) for user in range(USERS)]


def padded(rows: Sequence[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True) if rows else torch.zeros(0, 2, dtype=torch.long)


class Model(nn.Module):
    """A next-item model without a mistake."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(ITEMS, DIM, padding_idx=0)
        self.mix, self.out = nn.Linear(DIM, DIM), nn.Linear(DIM, ITEMS)

    def encode(self, ids: Tensor) -> Tensor:  # (B, T) -> (B, T, D)
        return self.mix(self.table(ids)).tanh()

    def each(self, ids: Tensor) -> Tensor:
        scores = self.out(self.encode(ids[:, :-1]))
        return F.cross_entropy(scores.mT, ids[:, 1:], reduction="none", ignore_index=0)

    def losses(self, ids: Tensor) -> Tensor:
        return self.each(ids).sum(1)


def start(model: nn.Module, data: Any = None, **options: Any) -> dprec.training.script.Training:
    settings: dict[str, Any] = {
        "expected_batch": 12, "steps": 6, "noise_multiplier": 1.0, "delta": 1e-3, "verify": 0.0,
        "loader": {"collate_fn": padded},
    }  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return dprec.private(model, optimizer, people() if data is None else data, **settings | options)


def go(training: Any) -> None:
    for batch in training:
        training.step(batch)


def test_a_model_without_a_mistake_trains() -> None:
    training = start(Model(), verify=1.0)
    go(training)
    assert training.steps == 6


# Users who are mixed.


class BatchNorm(Model):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(DIM, **options)

    def encode(self, ids: Tensor) -> Tensor:
        return self.norm(super().encode(ids).mT).mT


class InBatchNegatives(Model):
    def losses(self, ids: Tensor) -> Tensor:
        scores = self.encode(ids)[:, 0] @ self.table(ids[:, 1]).T
        return F.cross_entropy(scores, torch.arange(len(ids)), reduction="none")


class BroadcastNegatives(Model):
    """The same, where every operation is by element."""

    def losses(self, ids: Tensor) -> Tensor:
        scores = self.encode(ids)[:, 0].sum(1, keepdim=True) * self.table(ids[:, 1]).sum(1)
        return -F.log_softmax(scores, dim=1)[:, 0]


class WaitingNegatives(BroadcastNegatives):
    """The same behind a gate that starts at 0 and has no gradient there."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def losses(self, ids: Tensor) -> Tensor:
        return Model.losses(self, ids) + self.gate * self.gate * super().losses(ids)


class MeanOverPadding(Model):
    def losses(self, ids: Tensor) -> Tensor:
        return self.each(ids).mean(1)


class NoNumberAtPadding(Model):
    """0 · ∞ at the padding of others."""

    def losses(self, ids: Tensor) -> Tensor:
        real = ids != 0
        size = (self.encode(ids).square().sum(2) * real).sqrt()
        return super().losses(ids) + torch.where(real, size, 0.0).sum(1)


class ScaledByAll(Model):
    def losses(self, ids: Tensor) -> Tensor:
        each = super().losses(ids)
        return each / each.detach().max()


class ScaledByHowMany(Model):
    def losses(self, ids: Tensor) -> Tensor:
        return super().losses(ids) / max(4, len(ids))


class UsersAsTime(Model):
    """A recurrent layer that expects time first."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(DIM, DIM)

    def encode(self, ids: Tensor) -> Tensor:
        return self.gru(super().encode(ids))[0]


class AttentionOverUsers(Model):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 1)

    def encode(self, ids: Tensor) -> Tensor:
        x = super().encode(ids)
        return self.attention(x, x, x, need_weights=False)[0]


class PositionsOfUsers(Model):
    """Encodings of positions for time-first batches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("encodings", torch.randn(USERS, 1, DIM))

    def encode(self, ids: Tensor) -> Tensor:
        return super().encode(ids) + self.encodings[: len(ids)]


class ParameterOfPlace(Model):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(USERS, DIM))

    def encode(self, ids: Tensor) -> Tensor:
        return super().encode(ids) + self.places[: len(ids)].unsqueeze(1)


class OfTheUserBefore(Model):
    def encode(self, ids: Tensor) -> Tensor:
        return super().encode(ids.roll(1, 0))


class WrittenPart(Model):
    """The user before is added in place, to a part that has another name."""

    def encode(self, ids: Tensor) -> Tensor:
        x = super().encode(ids).clone()
        part = x[1:]
        part.add_(x[:-1].clone())
        return x


class GradientOfAll(Model):
    """A hook bounds the gradient of the whole batch."""

    def encode(self, ids: Tensor) -> Tensor:
        x = super().encode(ids)
        x.register_hook(lambda gradient: gradient / gradient.norm())
        return x


MIXED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batch norm": (BatchNorm, "batch_norm"),
    "batch norm without weights": (lambda: BatchNorm(affine=False, track_running_stats=False), "batch_norm"),
    "in-batch negatives": (InBatchNegatives, "who else is in the batch"),
    "in-batch negatives by broadcasting": (BroadcastNegatives, "who else is in the batch"),
    "a mean over padding": (MeanOverPadding, "padding"),
    "no number at padding": (NoNumberAtPadding, "padding"),
    "scaled by the largest": (ScaledByAll, "who else is in the batch"),
    "scaled by the number of users": (ScaledByHowMany, "who else is in the batch|own clipped gradient|autograd gives"),
    "users as time": (UsersAsTime, "who else is in the batch"),
    "attention over users": (AttentionOverUsers, "who else is in the batch"),
    "positions of users": (PositionsOfUsers, "who else is in the batch"),
    "a parameter for each place": (ParameterOfPlace, "place in the batch|who else is in the batch"),
    "the user before": (OfTheUserBefore, "who else is in the batch"),
    "the user before, written in place": (WrittenPart, "who else is in the batch"),
}


def refused(make: Callable[[], nn.Module], said: str, before: int = 1, data: Any = None, **options: Any) -> None:
    """See that a run is refused in one line before it has taken so many steps."""
    training: Any = None
    with pytest.raises(UserError, match=said) as told:
        go(training := start(make(), data, **options))
    assert "\n" not in str(told.value)
    assert training is None or training.steps < before


@pytest.mark.filterwarnings("ignore:.*taken alone")
@pytest.mark.parametrize("mistake", MIXED)
def test_users_who_are_mixed_are_found_before_the_first_step(mistake: str) -> None:
    make, said = MIXED[mistake]
    refused(make, said)


def test_with_a_hook_over_all_users_each_is_taken_alone() -> None:
    with pytest.warns(UserWarning, match="a hook on a gradient.* each user's gradient is taken alone"):
        go(training := start(GradientOfAll(), verify=1.0))
    assert training.steps == 6


def test_mixing_that_begins_with_the_first_step_is_found_before_the_second_is_released() -> None:
    refused(WaitingNegatives, "who else is in the batch|own clipped gradient", before=3)


def test_batch_norm_that_begins_with_the_training_mode_is_found() -> None:
    model = BatchNorm().eval()
    training = start(model)
    with pytest.raises(UserError, match="batch_norm|'norm.running_mean' changes"):  # noqa: PT012
        for number, batch in enumerate(training):
            assert number < 3
            training.step(batch)
            model.train()


# State that learns.


class Counts(Model):
    """A buffer that a checkpoint holds, or not."""

    def __init__(self, persistent: bool = True) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(ITEMS, dtype=torch.long), persistent=persistent)

    def losses(self, ids: Tensor) -> Tensor:
        self.seen += torch.bincount(ids.flatten(), minlength=ITEMS)
        return super().losses(ids)


class Codebook(Model):
    """A frozen parameter, written behind autograd's back."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.zeros(DIM), requires_grad=False)

    def encode(self, ids: Tensor) -> Tensor:
        x = super().encode(ids)
        self.codes.data.lerp_(x.detach().mean((0, 1)), 0.1)
        return x - self.codes


class MovesItself(Model):
    """Weights that losses move."""

    def losses(self, ids: Tensor) -> Tensor:
        self.out.bias.data[ids.flatten()] -= 0.1
        return super().losses(ids)


class RunningMean(Model):
    """A running mean in a plain attribute, which later losses depend on."""

    mean: Any = 0.0

    def encode(self, ids: Tensor) -> Tensor:
        x = super().encode(ids)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean((0, 1))
        return x - self.mean


class KeepsItsState(Model):
    """The state of a recurrent layer goes on from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.Linear(DIM, DIM), torch.zeros(1, DIM)

    def encode(self, ids: Tensor) -> Tensor:
        x = super().encode(ids) + self.cell(self.last[:1]).unsqueeze(1)
        self.last = x[:, -1].detach()
        return x


class TracksStatistics(Model):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(DIM, track_running_stats=True)

    def encode(self, ids: Tensor) -> Tensor:
        return self.norm(super().encode(F.pad(ids, (1, 1))).mT).mT[:, 1:-1]


class SpectralNorm(Model):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.spectral_norm(self.mix)


class Popularity(Model):
    """Counts the items of the first batch, and keeps the counts."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[Tensor] = []

    def encode(self, ids: Tensor) -> Tensor:
        if not self.counts:
            self.counts.append(torch.bincount(ids.flatten(), minlength=ITEMS).float())
        return super().encode(ids) * (1 + self.counts[0].log1p())[ids].unsqueeze(-1)


LEARNS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a buffer": (Counts, "'seen' changes"),
    "a buffer in no checkpoint": (lambda: Counts(persistent=False), "'seen' changes"),
    "a codebook": (Codebook, "'codes' changes"),
    "weights": (MovesItself, "'out.bias' changes"),
    "an attribute": (RunningMean, "'mean' changes|keeps something|who else is in the batch"),
    "a list": (Popularity, "who else is in the batch"),
    "a recurrent state": (KeepsItsState, "'last' changes|keeps something|who else is in the batch"),
    "running statistics": (TracksStatistics, "changes|keeps something|who else is in the batch"),
    "spectral norm": (SpectralNorm, "'mix.*_[uv]' changes"),
}


@pytest.mark.filterwarnings("ignore:.*taken alone")
@pytest.mark.parametrize("mistake", LEARNS)
def test_state_that_learns_from_users_is_found_before_the_first_step(mistake: str) -> None:
    make, said = LEARNS[mistake]
    refused(make, said)


# Gradients by another way than the step.


class OwnBackward(Model):
    def losses(self, ids: Tensor) -> Tensor:
        each = super().losses(ids)
        each.sum().backward(retain_graph=True)
        return each


class Unregistered(Model):
    """A layer in a plain list: neither the optimizer nor the model knows it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(DIM, DIM)]

    def encode(self, ids: Tensor) -> Tensor:
        return self.layers[0](super().encode(ids))


class Checkpointed(Model):
    reentrant = False

    def encode(self, ids: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(super().encode, ids, use_reentrant=self.reentrant)


class HalfInside(Model):
    def encode(self, ids: Tensor) -> Tensor:
        return super().encode(ids).half().float()


class AutocastInside(Model):
    def losses(self, ids: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().losses(ids).float()


ELSEWHERE: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "a backward pass in losses": (OwnBackward, "backward pass by itself"),
    "a layer that is not registered": (Unregistered, "is no trained parameter of the model"),
    "checkpoints": (Checkpointed, "torch.utils.checkpoint"),
    "half precision in losses": (HalfInside, "float16 by itself"),
    "autocast in losses": (AutocastInside, "bfloat16 by itself"),
}


@pytest.mark.parametrize("mistake", ELSEWHERE)
def test_what_is_computed_by_another_way_is_refused_before_the_first_step(mistake: str) -> None:
    make, said = ELSEWHERE[mistake]
    refused(make, said, before=2)


def test_tf32_is_set_back_or_refused() -> None:
    torch.set_float32_matmul_precision("medium")
    training = start(Model(), steps=2)
    go(training)
    assert torch.get_float32_matmul_precision() == "highest"
    training = start(Model())
    with pytest.raises(UserError, match="full float32"):  # noqa: PT012
        for batch in training:
            training.step(batch)
            torch.set_float32_matmul_precision("high")
    torch.set_float32_matmul_precision("highest")
    assert training.steps == 1


# Batches that are not the sampler's draw.


def standardised(rows: Sequence[Tensor]) -> Tensor:
    """Features are standardised over the batch."""
    x = torch.stack(list(rows)) if rows else torch.zeros(0, DIM)
    return (x - x.mean(0)) / (x.std(0) + 1e-3) if len(x) > 1 else x


def twice(rows: Sequence[Tensor]) -> Tensor:
    """The first user in the place of the last."""
    return padded([*rows[:-1], rows[0]] if len(rows) > 1 else rows)


class Features(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(DIM, 1)

    def losses(self, x: Tensor) -> Tensor:
        return (self.out(x).squeeze(1) - 1).square()


def test_a_user_in_the_place_of_another_is_refused() -> None:
    refused(Model, "who else is in the batch|data gives", before=2, loader={"collate_fn": twice}, verify=1.0)


@dataclass
class Sorted:
    """A batch whose `select` forgets in which order it was asked."""

    x: Tensor

    def __len__(self) -> int:
        return len(self.x)

    def select(self, users: Sequence[int]) -> Sorted:
        return Sorted(self.x[sorted(users)])


def test_a_batch_that_selects_other_users_than_it_is_asked_for_is_refused() -> None:
    class Unpacked(Model):
        def losses(self, batch: Any) -> Tensor:
            return super().losses(batch.x)

    refused(Unpacked, "autograd gives", loader={"collate_fn": lambda rows: Sorted(padded(rows))})


def test_a_loader_that_standardises_over_the_batch_is_refused() -> None:
    draw = torch.Generator().manual_seed(0)
    users = torch.randn(USERS, DIM, generator=draw)
    refused(Features, "who else is in the batch", data=users, loader={"collate_fn": standardised})
