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
from dprec.models import DPFormer, PrivateALS, Spectral, SpectralFormer
from dprec.models.learning.learner import Learner
from tests.models.zoo import ITEMS, MODELS

USERS = 40
# `public` knows the shares of a file, and `uniform` has none.
ASKING: dict[str, Callable[[], Learner]] = {
    "dpformer": lambda: DPFormer(ITEMS, dim=4, max_length=9),
    "spectral": lambda: Spectral(ITEMS, top=12, rank=4, max_length=9),
    "spectral of clear items": lambda: Spectral(ITEMS, top=12, rank=4, max_length=9, clear=2.0),
    "discriminant": lambda: Spectral(ITEMS, top=12, rank=4, max_length=9, pair_share=0.5, lead_share=0.3),
    "discriminant and repeats": lambda: Spectral(
        ITEMS, top=12, rank=4, max_length=9, pair_share=0.5, lead_share=0.3, repeat_share=0.01, shrink=0.5
    ),
    "spectral former": lambda: SpectralFormer(ITEMS, top=12, rank=4, max_length=9, repeat_share=0.01),
    "private als": lambda: PrivateALS(ITEMS, top=12, rank=3, max_length=9),
    "private als, a Gram matrix for each": lambda: PrivateALS(ITEMS, top=12, rank=3, max_length=9, grams="item"),
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


def prepared(make: Callable[[], Learner], seed: int) -> tuple[dict[str, Any], Told]:
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


def test_every_model_that_asks_is_here() -> None:
    kinds = {type(make()) for make in ASKING.values()}
    assert {type(model) for model in (make() for make in MODELS.values()) if getattr(model, "releases", ())} <= kinds
