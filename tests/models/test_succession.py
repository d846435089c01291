"""Models of private sums: items that follow items, and repeats, each against plain loops."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dprec.accounting.release import ExactSums, Portion, unit_sum
from dprec.data import RankingBatch
from dprec.data.logs.histories import Histories
from dprec.models import Spectral
from dprec.models.items.succession import (
    EDGES,
    LEAST,
    MOST,
    NEW,
    Repeats,
    Steps,
    Succession,
    repeat_counts,
    steps,
)

SHARES = {"frequency_share": 0.1, "pair_share": 0.3, "lead_share": 0.2, "step_share": 0.1, "more_share": 0.2}
ITEMS = 40


def log(*users: list[int]) -> Histories:
    offsets = np.r_[0, np.cumsum([len(user) for user in users])]
    return Histories.joined(offsets, np.concatenate([np.array(user, dtype=np.int32) for user in users]))


def walks(often: float, users: int = 600) -> Histories:
    """Histories of 12 items: the next one up with a probability, else any."""
    rng, made = np.random.default_rng(3), []
    for _ in range(users):
        own = [int(rng.integers(1, ITEMS))]
        while len(own) < 12:
            own.append(own[-1] % (ITEMS - 1) + 1 if rng.random() < often else int(rng.integers(1, ITEMS)))
        made.append(own)
    return log(*made)


class Asked(ExactSums):
    """Sums with noise, which remember what was asked and how far one user moves each answer."""

    def __init__(self, noise_std: float) -> None:
        self.noise_std, self.largest, self.names = noise_std, {}, []
        self.rng = np.random.default_rng(0)

    def std(self, release: object) -> float:
        return self.noise_std

    def __call__(self, release, size, users, portions):
        kept = list(portions)
        self.names.append((release.what, size))
        self.largest[release.what] = max(
            np.linalg.norm(unit_sum(size, users, [_of(portion, user) for portion in kept])) for user in range(8)
        )
        return unit_sum(size, users, kept) + self.noise_std * self.rng.standard_normal(size)


def _of(portion: Portion, user: int) -> Portion:
    own = portion.users == user
    return Portion(portion.users[own], portion.keys[own], portion.values[own])


class Data:
    def __init__(self, training: Histories) -> None:
        self.training = training


def prepared(often: float, noise_std: float = 0.5) -> tuple[Spectral, Asked]:
    model, sums = Spectral(ITEMS, top=ITEMS, rank=4, max_length=12, **SHARES).eval(), Asked(noise_std)
    model.prepare(Data(walks(often)), sums)
    return model, sums


def test_steps_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(0)
    users = [rng.integers(1, 9, length).tolist() for length in (0, 1, 2, 60, 7)]
    place, n = np.array([5, 0, 5, 1, 2, 9, 3, 4, 5]), 5
    expected = np.zeros((n, n))
    for user in users:
        own = np.zeros((n, n))
        for first, second in itertools.pairwise(user):
            if first != second and max(place[first], place[second]) < n:
                own[place[first], place[second]] += 1
        expected += own / max(np.linalg.norm(own), 1)
    assert np.allclose(unit_sum(n * n, len(users), steps(log(*users), place, n)).reshape(n, n), expected)


@pytest.mark.parametrize("often", [0.5, 0.0])
def test_every_sum_is_asked_once_and_moved_by_at_most_one(often: float) -> None:
    model, sums = prepared(often)
    assert sorted(name for name, _ in sums.names) == sorted(release.what for release in model.releases)
    assert max(sums.largest.values()) <= 1 + 1e-9


def test_items_that_follow_are_ranked_first() -> None:
    model, _ = prepared(0.5)
    last = torch.arange(1, ITEMS)[:, None]
    scores = model.scores(RankingBatch(last, last[:, 0], last))
    assert torch.isfinite(scores).all()
    assert (scores[:, 1:].argmax(1) + 1 == last[:, 0] % (ITEMS - 1) + 1).float().mean() > 0.9


def test_chances_add_up_to_one() -> None:
    succession = Succession(6)
    following = np.zeros((3, 3))
    following[0, 1:] = 0.5, 0.2
    succession.set(np.array([1, 3, 4]), following)
    before = torch.randn(2, 6)
    found = succession(before, torch.tensor([1, 3]))[:, 1:].exp()
    expected = before[:, 1:].softmax(1)
    assert torch.allclose(found.sum(1), torch.ones(2))
    assert torch.allclose(found[1], expected[1])
    assert torch.allclose(found[0, [2, 3]], 0.3 * expected[0, [2, 3]] + torch.tensor([0.5, 0.2]))


def test_noise_alone_does_not_stand_out() -> None:
    rng, n = np.random.default_rng(1), 200
    popularity, even = np.ones(n), np.full((n, n), 1 / n)
    for level in (0.0, 2.0, 20.0):
        found = level + 5.0 * rng.standard_normal((n, n))
        assert Steps(found, 5.0, popularity, 1.0).sure(even) < LEAST
    found[np.arange(n), (np.arange(n) + 1) % n] += 400.0
    look = Steps(found, 5.0, popularity, 1.0)
    assert look.sure(even) >= LEAST
    assert (look.following().argmax(1) == (np.arange(n) + 1) % n).all()
    assert look.following().sum(1).max() <= MOST + 1e-9


def test_a_plan_without_data_knows_all_releases() -> None:
    model = Spectral(ITEMS, again_share=0.05, repeat_share=0.02, **SHARES)
    assert Spectral.releases_of({"again_share": 0.05, "repeat_share": 0.02, **SHARES}) == model.releases


def test_counts_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(0)
    users = [rng.integers(1, 40, length).tolist() for length in (0, 1, 2, 90, 7)]
    expected = np.zeros(NEW + 1)
    for user in users:
        own = np.zeros(NEW + 1)
        for late in range(1, len(user)):
            ago = next((late - early for early in reversed(range(late)) if user[early] == user[late]), None)
            own[NEW if ago is None else sum(ago > edge for edge in EDGES)] += 1
        expected += own / max(np.linalg.norm(own), 1)
    assert np.allclose(unit_sum(NEW + 1, len(users), repeat_counts(log(*users))), expected)


def test_where_people_repeat_repeats_win() -> None:
    training = log(
        *[[first, second, first, second, first, second] for first in range(1, 7) for second in (1 + first % 6,)]
    )
    model = Spectral(7, top=6, rank=3, recent=3, max_length=9, repeat_share=0.1)
    model.prepare(Data(training), ExactSums())
    met = torch.tensor([[4, 5]])
    scores = model.scores(RankingBatch(met, torch.tensor([1]), met))[0]
    assert torch.isfinite(scores).all()
    assert scores[1:].argmax() + 1 == 4  # two events ago


def test_a_class_has_its_share_of_the_chances() -> None:
    repeats = Repeats(0.1)
    repeats.shares.copy_(torch.tensor([0.3, 0.1, 0.0, 0.0, 0.0, 0.0, 0.2, 0.4]).clamp(min=1e-9))
    scores = torch.randn(1, 9)
    found = repeats(scores, torch.tensor([[3, 4, 4, 0]]), torch.tensor([[3, 4, 7]]))[0].exp()
    assert found[4] == pytest.approx(0.3, rel=1e-5)  # met last, though also before
    assert found[7] == pytest.approx(0.2, rel=1e-5)  # met, and not in the recent history
    assert found[[1, 2, 5, 6, 8]].sum() == pytest.approx(0.4, rel=1e-5)
    order = scores[0, [1, 2, 5, 6, 8]].argsort()
    assert torch.equal(found[[1, 2, 5, 6, 8]].argsort(), order)
