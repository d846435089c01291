"""Items that follow items: counted as plain loops do, found where they are, and asked about within the budget."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dprec.accounting.release import ExactSums, Portion, unit_sum
from dprec.data import RankingBatch
from dprec.data.logs.histories import Histories
from dprec.errors import UserError
from dprec.models import Spectral
from dprec.models.items.discriminant import DiscriminantItems
from dprec.models.items.succession import MOST, Steps, Succession, steps, together

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


@pytest.mark.parametrize(("often", "follows"), [(0.5, True), (0.0, False)])
def test_the_larger_share_goes_to_what_the_first_look_found(often: float, follows: bool) -> None:
    model, sums = prepared(often)
    described = model.described
    assert isinstance(described, DiscriminantItems)
    assert described.succession is not None
    sizes = dict(sums.names)
    assert sizes["items right after items"] == (ITEMS - 1) ** 2
    assert (sizes["steps, or histories before items"] == (ITEMS - 1) ** 2) is follows
    assert bool((described.succession.chance > 0).any()) is follows


@pytest.mark.parametrize(("noise_std", "hidden"), [(0.5, False), (60.0, True)])
def test_items_are_counted_again_where_noise_hides_them(noise_std: float, hidden: bool) -> None:
    model, sums = Spectral(ITEMS, top=ITEMS, rank=4, max_length=12, again_share=0.05, **SHARES), Asked(noise_std)
    model.prepare(Data(walks(0.0)), sums)
    assert (dict(sums.names)["item frequencies, or histories before items"] == ITEMS) is hidden
    assert sorted(name for name, _ in sums.names) == sorted(release.what for release in model.releases)
    assert model.findings[0].startswith(f"5% of the budget went to {'counting items again' if hidden else 'the hist'}")
    assert len(model.findings) == 2


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
        assert not Steps(found, 5.0, popularity, 1.0, even).stand_out()
    found[np.arange(n), (np.arange(n) + 1) % n] += 400.0
    look = Steps(found, 5.0, popularity, 1.0, even)
    assert look.stand_out()
    assert (look.following().argmax(1) == (np.arange(n) + 1) % n).all()
    assert look.following().sum(1).max() <= MOST + 1e-9


def test_two_answers_are_weighed_by_their_noise() -> None:
    rng = np.random.default_rng(2)
    truth = rng.standard_normal(4000)
    found, noise = together(truth + 3 * rng.standard_normal(4000), 3.0, truth + 1.5 * rng.standard_normal(4000), 1.5)
    assert (found - truth).std() == pytest.approx(noise, rel=0.05)
    assert noise < 1.5


@pytest.mark.parametrize("wrong", [{"more_share": 0.0}, {"step_share": 0.0}, {"lead_share": 0.0}, {"step_share": 0.6}])
def test_shares_that_do_not_fit_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="share"):
        Spectral(ITEMS, **(SHARES | wrong))


def test_a_plan_without_data_knows_all_releases() -> None:
    model = Spectral(ITEMS, again_share=0.05, repeat_share=0.02, **SHARES)
    assert Spectral.releases_of({"again_share": 0.05, "repeat_share": 0.02, **SHARES}) == model.releases


def test_steps_are_counted_among_items_that_enough_users_met() -> None:
    described = Spectral(60, top=50, rank=4, **SHARES).described
    assert isinstance(described, DiscriminantItems)
    assert described.countable(np.arange(1.0, 41.0), 4.0).tolist() == list(range(11, 40))
    assert described.countable(np.arange(1.0, 41.0), 1e9).tolist() == [38, 39]
