"""What a model takes from a log before training is what its releases answer, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from dprec.accounting.release import ExactSums, Portion, Release
from dprec.data.logs.histories import Histories
from tests.zoo.recommenders import ITEMS, MODELS, spectral

USERS = 40
# Of the zoo's models those that ask, and what else may be asked for.
ASKING: dict[str, Callable[[], Any]] = {
    **{name: make for name, make in MODELS.items() if getattr(make(), "releases", ())},
    "spectral-clear": lambda: spectral(clear=2.0),
    "spectral-repeats": lambda: spectral(pair_share=0.5, lead_share=0.3, repeat_share=0.01, shrink=0.5),
}


class Told(ExactSums):
    """Answers that hang on the question alone."""

    def __init__(self) -> None:
        self.asked: list[tuple[Release, int, int]] = []

    def __call__(self, release: Release, size: int, users: int, portions: Iterable[Portion]) -> np.ndarray:
        list(portions)  # a model may keep what it reads on the way
        self.asked.append((release, size, users))
        return 9 * np.abs(np.random.default_rng(len(self.asked)).standard_normal(size))

    def std(self, release: Release) -> float:
        return 0.5


def log(seed: int) -> SimpleNamespace:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(2, 12, USERS)
    training = Histories.joined(np.r_[0, np.cumsum(lengths)], draw.integers(1, ITEMS, lengths.sum()))
    return SimpleNamespace(training=training, users=USERS, items=ITEMS)


def prepared(make: Callable[[], Any], seed: int) -> tuple[dict[str, Any], Told]:
    torch.manual_seed(0)
    model, sums = make(), Told()
    model.prepare(log(seed), sums)
    assert {release for release, _, _ in sums.asked} == set(model.releases)
    return model.state_dict(), sums


@pytest.mark.parametrize("name", ASKING)
def test_equal_answers_about_other_users_make_the_same_model(name: str) -> None:
    (one, asked), (other, of_others) = (prepared(ASKING[name], seed) for seed in (1, 2))
    assert asked.asked == of_others.asked
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key
