"""One user is one row: micro-batches hold what the step has drawn, whatever loader and collate function do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from dprec import Learner, Privacy
from dprec.data import PoissonBatches
from dprec.errors import UserError
from tests.quiet import trainer

USERS, LENGTH, ITEMS = 40, 7, 12


class Histories(Dataset):
    """Users' events, some with few and some with many."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(0)
        lengths = torch.randint(1, LENGTH + 1, (USERS,), generator=draw).tolist()
        self.events = [torch.randint(1, ITEMS, (length,), generator=draw) for length in lengths]

    def __len__(self) -> int:
        return USERS

    def __getitem__(self, user: int) -> Any:
        return self.events[user]


class Windows(Histories):
    """An item is a user's windows of two events: as many rows as there are."""

    def __getitem__(self, user: int) -> Tensor:
        events = torch.cat([torch.zeros(1, dtype=torch.long), self.events[user]])
        return events.unfold(0, 2, 1)


@dataclass
class Padded:
    """A batch of one's own, without `select`."""

    events: Tensor  # (B, T)

    def __len__(self) -> int:
        return len(self.events)


def padded(rows: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Bag(Learner):
    """How the mean of a user's vectors differs from a target."""

    def __init__(self) -> None:
        super().__init__(learning_rate=0.1)
        self.table = nn.Embedding(ITEMS, 4, padding_idx=0)
        self.out = nn.Linear(4, 1)

    def each(self, events: Tensor) -> Tensor:  # (B, T) -> (B, T)
        return ((self.out(self.table(events)).squeeze(2) - 1) ** 2) * (events != 0)

    def losses(self, batch: Any) -> Tensor:
        events = batch if isinstance(batch, Tensor) else batch.events
        return self.each(events).sum(1) / (events != 0).sum(1).clamp(min=1)


def train(
    model: Any,
    collate: Callable[[list[Any]], Any],
    dataset: Any = None,
    sampler: Any = None,
    make: Any = DataLoader,
    **options: Any,
) -> Privacy:
    sampler = sampler or PoissonBatches(USERS, 20)
    loader = make(dataset or Histories(), batch_sampler=sampler, collate_fn=collate, **options)
    privacy = Privacy(noise_multiplier=1.0)
    trainer(privacy, max_steps=4).fit(model, loader)
    return privacy


def one(rows: list[Tensor]) -> list[Padded]:
    return [Padded(padded(rows))] if rows else []


def longest_first(rows: list[Tensor]) -> list[Padded]:
    rows = sorted(rows, key=len, reverse=True)
    return [Padded(padded(rows[start : start + 6])) for start in range(0, len(rows), 6)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("collate", [one, longest_first])
def test_batches_of_ones_own_train(collate: Any, workers: int) -> None:
    assert train(Bag(), collate, num_workers=workers).steps == 4


def doubled(rows: list[Tensor]) -> list[Padded]:
    return [*one(rows), *one(rows[:1])]


def without_short_ones(rows: list[Tensor]) -> list[Padded]:
    return one([row for row in rows if len(row) > 2])


def mixed_up(rows: list[Tensor]) -> list[Padded]:
    """Every row holds events of the next user, too: one row each, as the count goes."""
    return one([torch.cat([row, other[:2]]) for row, other in zip(rows, [*rows[1:], *rows[:1]], strict=True)])


@pytest.mark.parametrize(
    ("collate", "dataset", "said"),
    [
        (lambda rows: [torch.cat(rows)], Windows(), r"users were drawn.* rows: one user is one row; .*stack"),
        (lambda rows: [torch.cat(rows)] if rows else [], Windows(), "drawn, and their micro-batches have"),
        (doubled, None, "drawn, and their micro-batches have"),
        (without_short_ones, None, "drawn, and their micro-batches have"),
        (mixed_up, None, "compute loss u and row u from user u alone"),
        (lambda rows: padded(rows), None, "let collate_fn return|return a list of micro-batches"),
        (lambda rows: (padded(rows),) if rows else (), None, "is a tuple: let collate_fn return a list"),
        (lambda rows: [{"events": padded(rows)}] if rows else [], None, "is a dict.*dataclass with a __len__"),
        (lambda rows: [padded(rows)], None, r"a batch of nobody.*return \[\] for no rows"),
    ],
)
def test_rows_that_are_not_the_drawn_users_are_refused_in_one_line(collate: Any, dataset: Any, said: str) -> None:
    model = Bag()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(UserError, match=said) as caught:
        train(model, collate, dataset)
    assert "\n" not in str(caught.value)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


class Twice(PoissonBatches):
    def __iter__(self) -> Any:
        for users in super().__iter__():
            yield users + users


class Repeats(DataLoader):
    def __iter__(self) -> Any:
        return (batch for batch in super().__iter__() for _ in range(2))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sampler": Twice(USERS, 20)}, "drawn, and their micro-batches have"),
        ({"sampler": PoissonBatches(30, 20)}, "the data set has 40 items and the sampler draws from 30 users"),
        ({"make": Repeats}, "come from Repeats, which may change them"),
        ({"num_workers": 2, "in_order": False}, "in_order=False"),
    ],
)
def test_loaders_whose_batches_are_not_the_draws_are_refused(options: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        train(Bag(), one, **options)


class LooksBack(Bag):
    """Keeps a mean of what users have after the step, where no noise would reach it."""

    held = 0

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.held += sum(len(part) for part in batch)


def test_hooks_after_the_step_see_no_users() -> None:
    model = LooksBack()
    assert train(model, one).steps == 4
    assert model.held == 0
