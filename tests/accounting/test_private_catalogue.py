"""Which ids may be named: what one user changes, and how often an id of one user alone comes through."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.ledger import Ledger
from dprec.accounting.private_catalogue import MOST, PrivateCatalogue, _spread
from dprec.accounting.release import unit_sum
from dprec.errors import UserError
from dprec.noise.gaussian import GaussianNoise


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
