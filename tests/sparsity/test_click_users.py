"""Two click logs that differ by one person with all records: choices, counts and sums differ by that person's share.

Beside `test_neighbours`, where the person is a row of a sequence. People have one to many records here, and the one
who leaves may be the one with the most, who decides the shape of everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dprec.data.draws.batch import ClickBatch, PersonBatch
from dprec.models import DLRM, PCTR, Logistic
from tests.sparsity import test_neighbours as neighbours
from tests.sparsity.test_neighbours import World

pytestmark = pytest.mark.full

SIZES, NUMBERS, BAG = (9, 4), 2, 3
MODELS: dict[str, Callable[[], Any]] = {
    "pctr": lambda: PCTR(NUMBERS, SIZES, hidden=[5]),
    "dlrm": lambda: DLRM(NUMBERS, SIZES, dim=3, bottom=[4], top=[4]),
    "logistic": lambda: Logistic(NUMBERS, SIZES),
    "low rank": lambda: PCTR(NUMBERS, SIZES, hidden=[5], low_rank=2),
}


def people(lengths: list[int], seed: int = 0) -> PersonBatch:
    """People with so many records, whose bags repeat ids, and some of which are empty."""
    torch.manual_seed(seed)
    records = sum(lengths)
    ids = torch.stack([torch.randint(-1, size, (records, BAG)) for size in SIZES], 1)
    batch = ClickBatch(4 * torch.randn(records, NUMBERS).double(), ids, torch.randint(0, 2, (records,)).double())
    present = np.arange(max(lengths, default=1)) < np.array(lengths, dtype=np.int64)[:, None]
    return PersonBatch.padded(batch, present)


class ClickWorld(World):
    def __init__(self, model: str, strategies: str, users: Any, cut: int, loud: float, mode: Any) -> None:
        torch.manual_seed(1)
        super().__init__(model, strategies, users, cut, loud, mode)


@pytest.fixture(autouse=True)
def _clicks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "MODELS", MODELS)
    monkeypatch.setattr(neighbours, "TABLES", ["tables.*"])


@pytest.mark.parametrize(
    ("model", "strategies"),
    [
        *(("pctr", "fest"), ("pctr", "exponential"), ("dlrm", "adafest"), ("dlrm", "exponential behind fest")),
        *(("logistic", "adafest+"), ("low rank", "adafest"), ("low rank", "exponential")),
    ],
)
def test_a_person_changes_the_choice_in_their_own_rows_and_the_sum_within_the_bound(
    model: str, strategies: str
) -> None:
    search(model, strategies)


def search(model: str, strategies: str) -> None:
    @settings(max_examples=2, deadline=None)
    @given(
        lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
        seed=st.integers(0, 10_000),
        cut=st.integers(1, 4),
        loud=st.sampled_from([1.0, 30.0, 1e-3]),
        mode=st.sampled_from(["auto-v", "auto-s", "flat"]),
    )
    @example(lengths=[9, 4, 1], seed=0, cut=3, loud=1.0, mode="auto-v")
    @example(lengths=[9, 4, 1], seed=2770, cut=3, loud=30.0, mode="flat")  # one of three has no gradient
    def of(lengths: list[int], seed: int, cut: int, loud: float, mode: Any) -> None:
        _compare(model, strategies, people(lengths, seed), cut, loud, mode)

    of()


def _compare(model: str, strategies: str, users: PersonBatch, cut: int, loud: float, mode: Any) -> None:
    def world(batch: PersonBatch) -> World:
        return ClickWorld(model, strategies, batch, cut, loud, mode)

    neighbours.compare(world, users, without)


def without(users: PersonBatch, user: int) -> PersonBatch:
    return users.select([other for other in range(len(users)) if other != user])


def test_a_persons_share_is_that_of_plain_autograd_over_all_their_records() -> None:
    """Flat clipping far above all norms: the sum is the gradient of the sum of people's means."""
    for model in MODELS:
        users = people([3, 1, 7, 2])
        world = ClickWorld(model, "fest", users, 2, 1.0, "flat")
        module = world.module
        own = [users.select([user]).records for user in range(4)]
        losses = torch.stack([module.losses(records).mean() for records in own])
        together = module.losses(users)
        torch.testing.assert_close(together, losses)
