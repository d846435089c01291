"""Rows that are drawn with Gumbel noise: the law of the draws, and what they tell, by exact enumeration."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from scipy import stats
from scipy.special import ndtr, ndtri

from dprec.accounting import selection
from dprec.accounting.ledger import Event, Ledger
from dprec.accounting.release import ExactSums, NoisySums, Portion, Release, users_at
from dprec.errors import UserError
from dprec.noise.gaussian import GaussianNoise
from tests.accounting.test_release import entries, portion


def sequences(counts: tuple[int, ...], keep: int, epsilon: float) -> dict[tuple[int, ...], float]:
    """The chance of every sequence of draws, one after the other without replacement."""
    weights = np.exp(epsilon * np.array(counts, dtype=float))
    found = {}
    for order in permutations(range(len(counts)), keep):
        left, chance = weights.sum(), 1.0
        for place in order:
            chance *= weights[place] / left
            left -= weights[place]
        found[order] = chance
    return found


def sets(counts: tuple[int, ...], keep: int, epsilon: float) -> dict[frozenset[int], float]:
    found: Counter[frozenset[int]] = Counter()
    for order, chance in sequences(counts, keep, epsilon).items():
        found[frozenset(order)] += chance
    return dict(found)


def test_the_chosen_places_have_the_law_of_draws_without_replacement() -> None:
    counts, epsilon, rng, rounds = (4, 1, 0, 3, 2), 0.8, np.random.default_rng(0), 20_000
    parts = [np.array([0, 1, 2]), np.array([3, 4])]
    seen = Counter(tuple(selection.drawn(np.array(counts), parts, [2, 1], epsilon, rng.random)) for _ in range(rounds))
    first = sets(counts[:3], 2, epsilon)
    second = sets(counts[3:], 1, epsilon)
    expected = {
        tuple(sorted([*one, *(3 + place for place in other)])): p * q
        for (one, p), (other, q) in product(first.items(), second.items())
    }
    assert seen.keys() == expected.keys()
    assert stats.chisquare([seen[k] for k in expected], [rounds * p for p in expected.values()]).pvalue > 1e-4


@pytest.mark.parametrize(("epsilon", "keep"), [(0.1, 1), (0.3, 3), (1.0, 2), (2.5, 3)])
def test_no_neighbours_tell_more_than_the_gaussian_that_is_on_record(epsilon: float, keep: int) -> None:
    """A person more raises any of the counts by one; δ at every ε, both ways, over all sequences of draws."""
    sigma, worst = selection.multiplier_of(epsilon, keep), 0.0
    for counts in product((0, 2, 9), repeat=4):
        for own in product((0, 1), repeat=4):
            more = tuple(np.add(counts, own))
            p, q = (np.array(list(sequences(c, keep, epsilon).values())) for c in (counts, more))
            for told in np.linspace(-keep * epsilon, keep * epsilon, 9):
                gaussian = ndtr(0.5 / sigma - told * sigma) - math.exp(told) * ndtr(-0.5 / sigma - told * sigma)
                for one, other in ((p, q), (q, p)):
                    delta = np.maximum(one - math.exp(told) * other, 0).sum()
                    assert delta <= gaussian + 1e-12
                    worst = max(worst, delta / gaussian)
    assert worst > 0.5, "the Gaussian is not much worse than the draws"


def test_a_draw_between_two_losses_is_least_private_where_they_are_opposite() -> None:
    for epsilon in (0.01, 0.5, 3.0, 12.0):
        t = np.linspace(0, epsilon, 401)[1:-1]
        taken = np.expm1(epsilon - t) / np.expm1(epsilon)  # chance of the loss t on the one side
        mu = ndtri(np.exp(t) * taken) - ndtri(taken)
        assert mu.max() == pytest.approx(1 / selection.multiplier_of(epsilon, 1), rel=1e-6)


def test_as_printed_two_draws_tell_twice_their_epsilon() -> None:
    """Three buckets, two of them drawn with ε = 1: printed as (1, 0)-private."""
    one, other = (sets(counts, 2, 1.0)[frozenset({0, 1})] for counts in ((0, 0, 20), (0, 0, 21)))
    assert math.log(one / other) == pytest.approx(2.0, abs=1e-6)


@given(entries)
def test_a_person_moves_every_count_by_one_at_most_and_none_down(rows: list[tuple[int, int, float]]) -> None:
    whole = users_at(6, 4, [portion(rows)])
    for user in range(4):
        moved = whole - users_at(6, 4, [portion([row for row in rows if row[0] != user])])
        own = {place for who, place, _ in rows if who == user}
        assert moved.tolist() == [float(place in own) for place in range(6)]


def test_the_epsilon_of_a_draw_is_that_of_the_recorded_event() -> None:
    portions = [Portion(np.array([0, 0, 1, 2]), np.array([1, 1, 1, 3]), np.array([9.0, 1.0, 1.0, 1.0]))]
    release, book = Release("rows", 0.5, drawn=2), Ledger()
    event = Event("gaussian", 1e-3, what="rows")
    sums = NoisySums({release: event}, GaussianNoise(), book.record)
    parts = [np.array([0, 1]), np.array([2, 3])]
    assert ExactSums().select(release, parts, 4, 3, portions).tolist() == [1, 3]
    assert sums.select(release, parts, 4, 3, portions).tolist() == [1, 3]  # ε of a draw is 1e6 here
    assert book.events == {event: 1}
    with pytest.raises(UserError, match="paid for once"):
        sums.select(release, parts, 4, 3, portions)
    with pytest.raises(UserError, match="was not planned"):
        NoisySums({release: event}, GaussianNoise(), book.record)(release, 4, 3, portions)


@pytest.mark.full
def test_noise_of_a_run_is_that_of_its_multiplier() -> None:
    """Two rows, ten users apart: how often the larger one wins tells the ε of a draw."""
    sigma, wins, rounds = 5.0, 0, 4_000
    epsilon = selection.epsilon_of(sigma, 1)
    users = np.arange(30)
    keys = np.where(users < 20, 0, 1)
    for _ in range(rounds):
        release = Release("rows", 0.5, drawn=1)
        sums = NoisySums({release: Event("gaussian", sigma)}, GaussianNoise(), lambda event: None)
        wins += int(sums.select(release, [np.array([0, 1])], 2, 30, [Portion(users, keys, np.ones(30))])[0] == 0)
    expected = 1 / (1 + math.exp(-10 * epsilon))
    assert abs(wins / rounds - expected) < 4 * math.sqrt(expected * (1 - expected) / rounds)
