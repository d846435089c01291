"""Choices and their price: rows by Gumbel noise, ids that may be named, the best of several private runs."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations, product

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp, ndtr
from scipy.stats import norm

from dprec.accounting import selection
from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.composition import ORDERS
from dprec.accounting.ledger import Event, Ledger
from dprec.accounting.plan import Plan
from dprec.accounting.private_catalogue import MOST, PrivateCatalogue, _spread
from dprec.accounting.release import ExactSums, NoisySums, Portion, Release, unit_sum, users_at
from dprec.accounting.repeated import Price, Repeated
from dprec.accounting.sampling import Sampling
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


def rows(users):
    """Users with lists of items as the two columns of distinct pairs."""
    user = np.repeat(np.arange(len(users)), [len(items) for items in users])
    return user, np.array([item for items in users for item in items], dtype=np.int64)


def sums(users, size):
    return unit_sum(size, len(users), [_spread(*rows(users))])


@given(
    st.lists(st.sets(st.integers(0, 30), min_size=1).map(list), min_size=1, max_size=6),
    st.sets(st.integers(0, 30), min_size=1).map(list),
)
def test_one_user_moves_the_counts_by_at_most_one(others, one):
    moved = sums([*others, one], 31) - sums(others, 31)
    assert np.linalg.norm(moved) == pytest.approx(1)
    assert set(moved[moved != 0].round(9)) == {round(1 / math.sqrt(len(one)), 9)}


def test_of_a_user_with_many_items_the_first_count():
    moved = sums([range(3 * MOST), [0]], 3 * MOST)
    assert np.count_nonzero(moved) == MOST
    assert moved[1:MOST] == pytest.approx(1 / math.sqrt(MOST))


@pytest.mark.parametrize(("sigma", "hidden"), [(0.6, 1e-3), (1.7, 8e-6), (9.0, 1e-9), (2.0, 0.3)])
def test_ids_of_one_user_alone_pass_with_the_probability_that_is_paid_for(sigma, hidden):
    """Whatever number of them there are, by the normal law written down anew; and no threshold below would do."""
    choice = PrivateCatalogue(sigma, hidden)
    passes = [1 - norm.cdf((choice.threshold - 1 / math.sqrt(t)) / choice.std) ** t for t in range(1, MOST + 1)]
    assert max(passes) == pytest.approx(hidden, rel=1e-5, abs=1e-14)
    assert all(choice.leak(t) <= hidden * (1 + 1e-9) for t in range(1, MOST + 1))


@pytest.mark.full
@pytest.mark.parametrize("alone", [1, 5, MOST, 50 * MOST])
def test_the_law_of_the_choice_itself(alone):
    """A user with items of their own beside two that everybody has; δ' is large, so that it can be measured."""
    choice, draws = PrivateCatalogue(2.0, 0.2), 3000
    users = [[0, 1]] * 100 + [list(range(2, 2 + alone))]
    user, item = rows(users)
    named = 0
    for seed in range(draws):
        chosen = choice.choose([(user, item)], len(users), 2 + alone, GaussianNoise(seed))
        assert {0, 1} <= set(chosen.tolist())
        named += len(chosen) > 2
    expected = choice.leak(min(alone, MOST))  # of more the first count, and no other can be named
    assert expected <= 0.2 * (1 + 1e-9)
    assert abs(named / draws - expected) < 4 * math.sqrt(expected * (1 - expected) / draws) + 1e-9


def test_what_it_costs():
    budget = PrivacyBudget(4, 1e-5)
    whole, tenth = PrivateCatalogue.of(budget, 1.0), PrivateCatalogue.of(budget, 0.1)
    assert tenth.noise_multiplier == pytest.approx(whole.noise_multiplier * math.sqrt(10))
    for choice in (whole, tenth):
        assert choice.hidden == pytest.approx(0.05e-5)
        counts, alone = choice.events
        assert (counts.kind, counts.noise_multiplier, alone.kind, alone.delta) == (
            "gaussian", choice.noise_multiplier, "bounded", choice.hidden,
        )  # fmt: skip
        assert PrivateCatalogue.recorded(choice.events) == choice.events
        ledger = Ledger(dict.fromkeys(choice.events, 1))
        assert ledger.epsilon(1e-5) <= 4
        # The δ of both adds up: at less than δ' nothing holds.
        assert ledger.epsilon(0.9 * choice.hidden) == math.inf
        assert ledger.epsilon(1e-5) == pytest.approx(Ledger({counts: 1}).epsilon(0.95e-5), rel=1e-4)
    assert Ledger(dict.fromkeys(whole.events, 1)).epsilon(1e-5) > 3.99


def test_nobody_with_enough_in_common_is_one_line():
    with pytest.raises(UserError, match="a private catalogue finds 0 items"):
        PrivateCatalogue(2.0, 1e-9).choose([rows([[0], [1], [2]])], 3, 3, GaussianNoise(0))


DELTA = 1 / 6040
SAMPLING = Sampling("poisson", users=6040, expected_batch=1024, rate=1024 / 6040, seeded=False)


@pytest.mark.parametrize(("sigma", "mean"), [(0.8, 50), (1.25, 5), (3.0, 1.5)])
def test_epsilon_is_that_of_the_library(sigma: float, mean: float) -> None:
    accountant = RdpAccountant(ORDERS)
    repeated = dp_accounting.dp_event.RepeatAndSelectDpEvent(dp_accounting.GaussianDpEvent(sigma), mean, 0)
    accountant.compose(repeated)
    ours = Repeated(mean).epsilon(ORDERS, np.array(ORDERS) / (2 * sigma**2), DELTA)
    assert ours == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-8)


@pytest.mark.parametrize("mean", [1.2, 5, 30])
def test_the_number_of_runs_follows_its_law(mean: float) -> None:
    repeated, random = Repeated(mean), np.random.default_rng(0)
    drawn = np.array([repeated.draw(uniform) for uniform in random.random(20_000)])
    assert drawn.min() == 1
    assert drawn.mean() == pytest.approx(mean, rel=0.05)
    for runs in (1, 2, 3):
        chance = repeated.chance(runs)
        assert (drawn == runs).mean() == pytest.approx(chance, abs=4 * math.sqrt(chance / len(drawn)))
    assert sum(repeated.chance(runs) for runs in range(1, 5000)) == pytest.approx(1)


def shown(mean: float, one: np.ndarray) -> np.ndarray:
    """How probable each outcome is to be the largest of the runs, each of which has it with these probabilities."""
    counts = np.arange(1, 4000)
    chances = np.array([Repeated(mean).chance(int(count)) for count in counts])
    return np.diff((chances * np.cumsum(one)[:, None] ** counts).sum(1), prepend=0.0)


PAIRS = [
    (np.array([0.9, 0.08, 0.02]), np.array([0.835164, 0.131898, 0.032974])),
    (np.array([0.4378, 0.1134, 0.4488]), np.array([0.5133, 0.1331, 0.3536])),
    (np.array([0.4078, 0.5921, 0.0001]), np.array([0.2056, 0.79435, 0.00005])),
]


@pytest.mark.parametrize(("mean", "pair"), zip([2, 20, 5], PAIRS, strict=True))
def test_no_outcome_of_a_choice_tells_more_than_its_price(mean: float, pair: tuple[np.ndarray, np.ndarray]) -> None:
    pair = (pair[0] / pair[0].sum(), pair[1] / pair[1].sum())
    orders, logs = np.array(ORDERS, dtype=float)[:, None], [np.log(one) for one in pair]
    both = [logsumexp(orders * p + (1 - orders) * q, axis=1) / (orders[:, 0] - 1) for p, q in (logs, logs[::-1])]
    divergences = np.maximum(*both)
    p, q = (shown(mean, one) for one in pair)
    for delta in (1e-2, 1e-4, 1e-6):
        epsilon = Repeated(mean).epsilon(ORDERS, divergences, delta)
        for one, other in ((p, q), (q, p)):
            assert np.maximum(one - math.exp(epsilon) * other, 0).sum() <= delta


@pytest.mark.full
def test_the_price_fits_the_budget_and_spends_it() -> None:
    plan = Plan.of(SAMPLING, 60, 5.0)
    price = Price.of(PrivacyBudget(5.0, plan.delta), Repeated(5), [(plan, 60)])
    assert 0.995 * 5 <= price.epsilon <= 5
    assert 1 < price.epsilon_of_run < 4
    own = Plan.of(SAMPLING, 60, price.epsilon_of_run, plan.delta)
    accountant = RdpAccountant(ORDERS)
    step = dp_accounting.PoissonSampledDpEvent(SAMPLING.rate, dp_accounting.GaussianDpEvent(own.sigma))
    run = [dp_accounting.SelfComposedDpEvent(step, 60), dp_accounting.GaussianDpEvent(price.score_noise)]
    accountant.compose(dp_accounting.dp_event.RepeatAndSelectDpEvent(dp_accounting.ComposedDpEvent(run), 5, 0))
    assert price.epsilon == pytest.approx(accountant.get_epsilon(plan.delta), rel=1e-4)


@pytest.mark.full
def test_settings_that_differ_cost_what_the_worst_of_them_costs_at_each_order() -> None:
    few, many = Plan.of(SAMPLING, 10, 5.0), Plan.of(SAMPLING, 600, 5.0)
    alone = [Price.of(PrivacyBudget(5.0, few.delta), Repeated(5), [entry]) for entry in ((few, 10), (many, 600))]
    both = Price.of(PrivacyBudget(5.0, few.delta), Repeated(5), [(few, 10), (many, 600)])
    assert both.epsilon_of_run <= min(one.epsilon_of_run for one in alone) * 1.001
    assert both.epsilon <= 5


def test_what_has_no_divergence_and_too_few_runs_are_refused() -> None:
    with pytest.raises(UserError, match="the catalogue has no Gaussian noise"):
        Ledger({Event("bounded", 1.0, what="the catalogue"): 1}).divergences()
    for mean in (1, 0, 2000):
        with pytest.raises(UserError, match="--runs"):
            Repeated(mean)
