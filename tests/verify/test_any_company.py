"""Before the first step a run sees whether users' numbers depend on who else is in the batch, and says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dprec import private
from dprec.data.draws.buckets import pad_rows
from dprec.gradients.uses import batches

UNEVEN = "by who else is in a batch"
ROWS = [torch.randint(1, 9, (7 * n % 130 + 2,), generator=torch.Generator().manual_seed(n)) for n in range(60)]


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out, self.drop = nn.Embedding(9, 64, padding_idx=0), nn.Linear(64, 300), nn.Dropout(0.2)

    def losses(self, batch: Tensor) -> Tensor:
        x = self.drop(self.table(batch).tanh())
        weight = x.mean(2).masked_fill(batch == 0, -torch.inf).softmax(1)
        halves = (x * weight.unsqueeze(2)).chunk(2, dim=1)  # of the padded length, so that it decides in which order
        return self.out(sum(half.sum(1) for half in halves)).logsumexp(1)


def sentence(collate: Any) -> str:
    torch.manual_seed(0)
    model = Pooled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = {"collate_fn": lambda rows: collate(rows) if rows else torch.zeros(0, 1, dtype=torch.long)}
    run = private(model, optimizer, ROWS, epsilon=8, expected_batch=20, steps=2, losses=model.losses, loader=loader)
    for batch in run:
        run.step(batch)
    return run.guarantee()


def test_rows_that_are_padded_by_their_own_length_have_equal_bits() -> None:
    assert UNEVEN not in sentence(lambda rows: pad_rows(rows, expected=20))


def test_rows_that_are_padded_to_the_longest_of_their_batch_have_not() -> None:
    assert UNEVEN in sentence(lambda rows: nn.utils.rnn.pad_sequence(rows, batch_first=True))


def test_batches_of_three_rows_have_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken on purpose: nothing fills a batch up."""
    monkeypatch.setattr(batches, "LEAST_ROWS", 0)
    monkeypatch.setattr(batches, "ROWS_A_THREAD", 0)
    monkeypatch.setattr(batches, "TAIL", 0)
    assert UNEVEN in sentence(lambda rows: pad_rows(rows, expected=20))
