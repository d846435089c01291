"""A user who is tried alone is what the data makes of this user, without the padding that others ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dprec
from dprec.errors import UserError
from dprec.sparsity.rows.counts import look_ups
from dprec.sparsity.rows.tables import RowSpace, Table

USERS, LONGEST = 40, 6


def histories(longest: int = LONGEST) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    lengths = [longest, *(1 + user % (LONGEST - 1) for user in range(1, USERS))]
    return [torch.rand(length, generator=draw) + 0.5 for length in lengths]


def padded(rows: Sequence[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(list(rows), batch_first=True) if rows else torch.zeros(0, 1)


@dataclass
class Kept:
    """A batch that keeps the padding of others in `select_users`."""

    x: Tensor  # (B, T)

    def __len__(self) -> int:
        return len(self.x)


class Trimmed(Kept):
    def select(self, users: Sequence[int]) -> Trimmed:
        rows = self.x[list(users)]
        return Trimmed(rows[:, : int((rows != 0).sum(1).max())])


class Counter:
    """How the loss of a script breaks at padding, from some step on."""

    def __init__(self, users: Any, collate: Callable[[Any], Any], broken_from: int, **options: Any) -> None:
        self.net = nn.Linear(1, 1)
        self.seen: list[int] = []
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        settings: dict[str, Any] = {"noise_multiplier": 1.0, "expected_batch": 20, "steps": 6, "verify": 0} | options
        self.training = training = dprec.private(
            self.net, optimizer, users, losses=lambda batch: losses(batch), loader={"collate_fn": collate}, **settings
        )
        net = self.net

        def losses(batch: Any) -> Tensor:
            x = batch if isinstance(batch, Tensor) else batch.x if isinstance(batch, Kept) else batch[0]
            each = net(x.unsqueeze(2)).squeeze(2).square()
            if training.steps <= broken_from:  # the step is on record by the time that its gradient is made
                return (each * (x != 0)).sum(1)
            return ((each * x).sqrt() * (x != 0)).sum(1)  # 0 · ∞ at padding

    def go(self) -> None:
        for batch in self.training:
            self.training.step(batch)


COLLATES: dict[str, Callable[[Any], Any]] = {
    "tensor": padded,
    "tuple": lambda rows: (padded(rows), torch.ones(len(rows))),
    "dataclass": lambda rows: Kept(padded(rows)),
}


@pytest.mark.parametrize("kind", COLLATES)
def test_a_user_whom_only_others_padding_breaks_is_not_dropped(kind: str) -> None:
    script = Counter(histories(), COLLATES[kind], broken_from=2)
    with pytest.raises(UserError, match=r"a user's gradient is zero or not finite in a .*select\(users\)") as refused:
        script.go()
    assert "\n" not in str(refused.value)
    assert script.training.steps == 3


def test_a_batch_that_selects_by_itself_trains_on() -> None:
    script = Counter(histories(), lambda rows: Trimmed(padded(rows)), broken_from=2)
    script.go()
    assert script.training.steps == 6


@pytest.mark.parametrize("kind", COLLATES)
def test_a_user_without_a_finite_gradient_of_their_own_is_left_out(kind: str) -> None:
    users = [torch.rand(LONGEST) + 0.5 for _ in range(USERS)]
    users[3][2] = float("nan")
    script = Counter(users, COLLATES[kind], broken_from=99)
    script.go()
    assert script.training.steps == 6
    assert all(bool(p.isfinite().all()) for p in script.net.parameters())


class Looking(nn.Module):
    """Looks up what it is given, padding included: row 0 is no padding row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 2)

    def losses(self, x: Tensor) -> Tensor:
        return (self.table(x).sum(2) * (x != 0)).sum(1)


class OfHistories:
    def __init__(self, users: list[Tensor], most: int = USERS) -> None:
        self.users, self.most = users, most

    def __len__(self) -> int:
        return len(self.users)

    def of(self, users: Sequence[int]) -> list[Tensor]:
        groups = [users[start : start + self.most] for start in range(0, len(users), self.most)]
        return [padded([self.users[user] for user in group]) for group in groups]


@pytest.mark.parametrize("most", [USERS + 1, 7])
def test_what_users_look_up_is_counted_without_others_padding(most: int) -> None:
    """One user more, with a longer history, must not make all others read a row more."""
    torch.manual_seed(0)
    model = Looking()
    users = [torch.randint(1, 8, (3,)) for _ in range(USERS)]
    space = RowSpace([Table("table.weight", model.table.weight)])
    parameters = dict(model.named_parameters())

    def counted(people: list[Tensor]) -> Tensor:
        total = torch.zeros(8)
        for portion in look_ups(space, model.losses, parameters, OfHistories(people, most)):
            total.index_add_(0, torch.from_numpy(portion.keys), torch.ones(len(portion.keys)))
        return total

    longer = torch.tensor([1, 2, 3, 4, 5, 6])
    assert torch.equal(counted([*users, longer]) - counted(users), torch.tensor([0.0, *[1.0] * 6, 0.0]))
