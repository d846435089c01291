"""A row counts for whoever reads it: whether a gradient cancels to zero may be decided by who else is in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dprec
from dprec.errors import UserError
from dprec.sparsity import AdaFEST
from dprec.sparsity.rows.kinds import BatchRows

GROUPS, LONGEST = 10, 500


@dataclass
class Kept:
    """A batch that keeps the padding of others."""

    group: Tensor  # (B,)
    residuals: Tensor  # (B, T)

    def __len__(self) -> int:
        return len(self.group)


class Trimmed(Kept):
    def select(self, users: Sequence[int]) -> Trimmed:
        rows = self.residuals[list(users)]
        there = (rows != 0).any(0).nonzero()
        return Trimmed(self.group[list(users)], rows[:, : int(there.max()) + 1 if len(there) else 1])


def centered(length: int) -> Tensor:
    """Residuals whose sum is 0 in float32 as they are, and is not with more padding."""
    draw = torch.Generator().manual_seed(0)
    residuals = torch.randn(400_000, length, generator=draw)
    residuals -= residuals.mean(1, keepdim=True)
    residuals = residuals[residuals.sum(1) == 0]
    longer = nn.functional.pad(residuals, (0, LONGEST - length))
    return residuals[longer.sum(1) != 0]


class Counts(AdaFEST):
    """Notes how many users count for each row."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.counts: list[list[int]] = []

    def choose(self, batch: BatchRows, among: Tensor | None) -> Tensor:
        self.counts.append(torch.bincount(batch.row, minlength=GROUPS).tolist())
        return super().choose(batch, among)


def counted(users: list[Any], kind: type[Kept]) -> list[int]:
    """Train a step with all of these users; return how many of them were counted for each row."""
    torch.manual_seed(0)
    net = nn.Module()
    net.table = nn.Embedding(GROUPS, 1)

    def collate(rows: list[Any]) -> Any:
        if not rows:
            return kind(torch.zeros(0, dtype=torch.long), torch.zeros(0, 1))
        padded = nn.utils.rnn.pad_sequence([residuals for _, residuals in rows], batch_first=True)
        return kind(torch.stack([group for group, _ in rows]), padded)

    def losses(batch: Kept) -> Tensor:
        found: Tensor = net.table(batch.group).squeeze(1) * batch.residuals.sum(1)
        return found

    training = dprec.private(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        users,
        losses=losses,
        noise_multiplier=1.0,
        expected_batch=len(users),
        steps=1,
        verify=0,
        sparsity=(strategy := Counts(threshold=3.0)),
        loader={"collate_fn": collate},
    )
    for batch in training:
        training.step(batch)
    return strategy.counts[0]


def test_a_longer_history_moves_no_count_of_others() -> None:
    pool = centered(41)
    others = [(torch.tensor(1), pool[number % len(pool)]) for number in range(30)]
    longer = (torch.tensor(2), torch.rand(LONGEST))
    with_user, without = counted([*others, longer], Trimmed), counted(others, Trimmed)
    assert without == [0, 30, *[0] * 8]
    assert with_user == [0, 30, 1, *[0] * 7]


def test_a_batch_that_cannot_tell_own_reads_from_padding_is_refused() -> None:
    zero = torch.zeros(3)
    users = [(torch.tensor(1), zero) for _ in range(30)] + [(torch.tensor(2), torch.randn(9))]
    with pytest.raises(UserError, match=r"gradient is zero or not finite in a Kept.*select\(users\)"):
        counted(users, Kept)


def test_who_reads_without_a_gradient_counts_in_a_batch_without_padding() -> None:
    users = [(torch.tensor(number % 3), torch.full((4,), float(number % 2))) for number in range(30)]
    assert counted(users, Kept) == [10, 10, 10, *[0] * 7]
