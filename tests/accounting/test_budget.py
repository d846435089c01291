"""The noise a budget needs, and the steps it allows."""

import math
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprec.accounting.budget import PrivacyBudget, calibrate, longest, most_steps
from dprec.accounting.ledger import Event, Ledger
from dprec.errors import UserError

USERS, RATE, STEPS = 6040, 1024 / 6040, 590


def steps_allowed(budget: PrivacyBudget, ledger: Ledger, event: Event, at_most: int = 10**6) -> int:
    """How many more uses of one event fit in the budget after what is recorded."""
    return most_steps(budget, lambda count: ledger.after(event, count), at_most)


def at_rate(rate: float) -> Callable[[float], Event]:
    return lambda sigma: Event("poisson_gaussian", sigma, rate)


@pytest.mark.parametrize(("epsilon", "expected"), [(5, 3.293), (8, 2.310), (10, 1.972)])
def test_published_noise_of_movielens(epsilon: float, expected: float) -> None:
    budget = PrivacyBudget(epsilon, 1 / USERS)
    start = time.process_time()
    sigma = calibrate(budget, at_rate(RATE), STEPS)
    assert time.process_time() - start < 5  # 0.6 s on one idle core
    assert sigma == pytest.approx(expected, abs=0.01)
    run = Event("poisson_gaussian", sigma, RATE)
    assert budget.allows(Ledger({run: STEPS}))
    assert not budget.allows(Ledger({Event("poisson_gaussian", sigma * 0.999, RATE): STEPS}))
    assert steps_allowed(budget, Ledger(), run, at_most=STEPS) == STEPS


@pytest.mark.full
@settings(max_examples=4, deadline=None)
@given(
    epsilon=st.floats(0.1, 20),
    delta=st.sampled_from([1e-3, 1e-5, 1e-8]),
    rate=st.floats(1e-4, 1),
    steps=st.integers(1, 2000),
)
def test_the_reported_epsilon_always_fits_and_is_not_wasteful(
    epsilon: float, delta: float, rate: float, steps: int
) -> None:
    budget = PrivacyBudget(epsilon, delta)
    sigma = calibrate(budget, at_rate(rate), steps)
    assert budget.allows(Ledger({at_rate(rate)(sigma): steps}))
    if sigma > 0.011:
        assert not budget.allows(Ledger({at_rate(rate)(sigma * 0.99): steps}))


def test_other_releases_are_paid_from_the_same_budget() -> None:
    budget = PrivacyBudget(5, 1 / USERS)
    frequencies = Event("gaussian", 2.0, what="item frequencies")
    sigma = calibrate(budget, at_rate(RATE), STEPS, already=Ledger({frequencies: 1}))
    assert sigma > calibrate(budget, at_rate(RATE), STEPS) + 0.1
    ledger = Ledger({frequencies: 1, at_rate(RATE)(sigma): STEPS})
    assert 4.99 < ledger.epsilon(1 / USERS) <= 5


@pytest.mark.parametrize(
    ("rate", "epsilon", "steps"),
    [(1e-7, 0.01, 1), (1e-7, 1000, 10**6), (0.01, 0.01, 10**6), (0.01, 1000, 1), (1.0, 0.01, 1), (1.0, 1000, 10**6)],
)
def test_extremes(rate: float, epsilon: float, steps: int) -> None:
    budget = PrivacyBudget(epsilon, 1e-12)
    sigma = calibrate(budget, at_rate(rate), steps)
    assert budget.allows(Ledger({at_rate(rate)(sigma): steps}))


def test_a_budget_out_of_reach() -> None:
    with pytest.raises(UserError, match="out of reach"):  # needs 579 * sqrt(1e6)
        calibrate(PrivacyBudget(0.01, 1e-12), at_rate(1.0), 10**6)


def test_a_budget_other_releases_have_passed() -> None:
    with pytest.raises(UserError, match="already exceeded"):
        calibrate(PrivacyBudget(1, 1e-5), at_rate(0.1), 10, already=Ledger({Event("gaussian", 1.0): 1}))


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan])
def test_impossible_epsilon(epsilon: float) -> None:
    with pytest.raises(UserError, match=r"privacy\.epsilon"):
        PrivacyBudget(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0, -1e-5, 1, 2, math.nan])
def test_impossible_delta(delta: float) -> None:
    with pytest.raises(UserError, match=r"privacy\.delta"):
        PrivacyBudget(1, delta)


@pytest.mark.parametrize("recorded", [0, 589])
def test_the_last_step_that_fits(recorded: int) -> None:
    budget = PrivacyBudget(5, 1 / USERS)
    event = Event("poisson_gaussian", 3.4, RATE)
    ledger = Ledger({event: recorded, Event("gaussian", 50.0, what="item frequencies"): 1})
    count = steps_allowed(budget, ledger, event)
    assert count > 0
    assert budget.allows(ledger.after(event, count))
    assert not budget.allows(ledger.after(event, count + 1))
    assert steps_allowed(budget, ledger, event, at_most=count - 1) == count - 1


def test_steps_in_closed_form() -> None:
    """Without sampling, n steps of noise σ are one of σ/√n: n = (σ / σ_1)² where σ_1 spends the budget."""
    budget = PrivacyBudget(1.0, 1e-5)
    once = calibrate(budget, lambda sigma: Event("gaussian", sigma), 1)
    assert steps_allowed(budget, Ledger(), Event("gaussian", once * 31.7)) in range(1003, 1007)  # 31.7² = 1004.9


@given(st.integers(0, 300), st.integers(0, 320), st.integers(0, 400))
def test_the_longest_is_found_from_every_guess(limit: int, fits: int, guess: int) -> None:
    assert longest(lambda count: count <= fits, limit, guess) == min(limit, fits)


def test_no_step_fits() -> None:
    budget = PrivacyBudget(1, 1e-5)
    spent = Ledger({Event("gaussian", 1.0): 1})
    assert steps_allowed(budget, spent, Event("poisson_gaussian", 100.0, 0.01)) == 0
    assert steps_allowed(budget, Ledger(), Event("poisson_gaussian", 0.0, 0.01)) == 0
    assert steps_allowed(budget, Ledger(), Event("poisson_gaussian", 0.02, 0.5)) == 0
