from __future__ import annotations

import math
from math import comb, exp

import numpy as np
import pytest

from dprec.auditing.one_run import at_least, audited_delta, chance, lower_bound


def written_out(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The theorem as it is stated, term by term: f(v) + 2mδ max_i (f(v - i) - f(v)) / i."""
    q = exp(epsilon) / (1 + exp(epsilon))

    def f(least: int) -> float:
        return sum(comb(r, k) * q**k * (1 - q) ** (r - k) for k in range(max(0, least), r + 1))

    slack = max(((f(v - i) - f(v)) / i for i in range(1, m + 1)), default=0.0)
    return min(1.0, f(v) + 2 * m * delta * slack)


@pytest.mark.parametrize(
    ("m", "r", "v", "delta"),  # canaries, guesses, right ones
    [(30, 12, 12, 0.0), (30, 12, 12, 0.02), (30, 30, 22, 0.0), (30, 30, 22, 1e-4), (30, 20, 3, 0.02), (5, 5, 0, 0.02)],
)
def test_the_probability_is_the_theorems(m: int, r: int, v: int, delta: float) -> None:
    for epsilon in (0.0, 0.7, 3.0):
        assert chance(m, r, v, epsilon, delta) == pytest.approx(written_out(m, r, v, epsilon, delta), rel=1e-9)


def test_the_bound_is_where_the_probability_crosses_the_doubt() -> None:
    epsilon = at_least(1000, 200, 190, 1e-5, 0.05)
    assert chance(1000, 200, 190, epsilon, 1e-5) <= 0.05 < chance(1000, 200, 190, epsilon + 2e-3, 1e-5)
    assert at_least(1000, 200, 190, 0.0, 0.05) > epsilon > at_least(1000, 200, 190, 1e-3, 0.05)
    assert at_least(1000, 200, 100, 0.0, 0.05) == 0.0


def answers(epsilon: float, delta: float, coins: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """Randomised response, which in a δ of all cases tells everything: as good as a mechanism can be guessed."""
    truth = draw.random(len(coins)) < 1 / (1 + math.exp(-epsilon))
    found = np.where(truth, coins, ~coins) * 2.0 - 1
    return np.where(draw.random(len(coins)) < delta, 3 * (coins * 2.0 - 1), found)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (2.0, 1e-3)])
def test_the_bound_is_wrong_in_at_most_one_of_twenty_runs(epsilon: float, delta: float) -> None:
    draw = np.random.default_rng(0)
    found = []
    for _ in range(100):
        coins = draw.random(400) < 0.5
        found.append(lower_bound({"answer": answers(epsilon, delta, coins, draw)}, coins, delta).epsilon)
    assert np.mean([bound > epsilon for bound in found]) <= 0.05
    if delta == 0 and epsilon:
        assert np.median(found) > epsilon / 2  # and it is of use


def test_coins_that_nothing_is_known_of_bound_nothing_and_known_ones_much() -> None:
    draw = np.random.default_rng(1)
    coins = draw.random(1000) < 0.5
    assert lower_bound({"noise": draw.normal(size=1000)}, coins, 1e-5).epsilon < 0.5
    known = lower_bound({"noise": draw.normal(size=1000), "all": coins * 1.0}, coins, 1e-5)
    assert known.epsilon > 3.5
    assert known.by.startswith("all")
    assert known.right > 0.99 * known.guesses


def test_the_reach_is_what_perfect_guesses_give_and_more_canaries_reach_further() -> None:
    """At δ = 1 / users they did not: of 20,000 canaries all known, ε was no more than of 1,000."""
    coins = np.arange(1000) % 2 == 0
    known = lower_bound({"all": coins * 1.0}, coins, audited_delta(3e-5, 1000))
    assert known.epsilon == pytest.approx(known.reach, abs=2e-3)
    unknown = lower_bound({"none": np.zeros(1000)}, coins, audited_delta(3e-5, 1000))
    assert unknown.epsilon < unknown.reach == known.reach
    reaches = [at_least(m, m, m, audited_delta(3e-5, m), 0.0025) for m in (1000, 5000, 20_000)]
    assert reaches == sorted(reaches)
    assert reaches[0] > 5
    assert reaches[-1] > 7.5
    stuck = [at_least(m, m, m, 3e-5, 0.0025) for m in (1000, 5000, 20_000)]
    assert max(stuck) < 4.2


def test_guesses_do_not_depend_on_the_coins() -> None:
    """Ties are broken by place, so that with scores that say nothing as many are right as coins happen to be."""
    coins = np.arange(1000) % 2 == 0
    for planted in (coins, ~coins):
        assert lower_bound({"none": np.zeros(1000)}, planted, 1e-6).epsilon == 0.0
