"""Lower bounds on ε from steps and from one run, the audit's own engines, honest and broken, and EANA's theorem."""

from __future__ import annotations

import math
from math import comb, exp

import numpy as np
import pytest
from scipy import integrate, stats

from dprec.auditing import steps
from dprec.auditing.evidence import (
    at_least,
    audited_delta,
    chance,
    lower_bound,
)
from tests.auditing.support import (
    Broken,
    noise_on_touched_rows_only,
    noise_times,
    norm_without_cross_terms,
    same_noise_every_step,
    watch,
)
from tests.studies import load

theory = load("eana")
T, M, RATE = 60, 400, 0.2


def entries(sigma: float, share: float = 1.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    planted = draw.random(M) < 0.5
    hits = share * (draw.random((T, M)) < RATE) * planted
    return hits + sigma * draw.normal(size=(T, M)), planted


def test_honest_steps_are_within_the_gauges() -> None:
    for seed in range(10):
        found = steps.gauges(*entries(1.5, seed=seed), sigma=1.5, rate=RATE)
        assert not any(gauge.breach for gauge in found.values())
        assert found["noise"].measured == pytest.approx(1.5, abs=4 * found["noise"].error)
        assert found["share"].measured == pytest.approx(1.0, abs=4 * found["share"].error)


def test_errors_are_the_standard_errors() -> None:
    many = [steps.gauges(*entries(1.5, seed=seed), sigma=1.5, rate=RATE) for seed in range(150)]
    for name in ("noise", "share", "repetition"):
        spread = np.std([found[name].measured for found in many])
        assert spread == pytest.approx(many[0][name].error, rel=0.25), name


def test_less_noise_and_a_larger_share_show() -> None:
    assert steps.gauges(*entries(1.4), sigma=1.5, rate=RATE)["noise"].breach
    assert steps.gauges(*entries(1.5, share=1.4), sigma=1.5, rate=RATE)["share"].breach
    assert not steps.gauges(*entries(1.6), sigma=1.5, rate=RATE)["noise"].breach


@pytest.mark.parametrize("period", [1, 3, 45])
def test_noise_that_comes_again_shows_at_whatever_distance(period: int) -> None:
    """As after a resume that starts the generator anew, or with a seed for each epoch."""
    fresh, planted = entries(1.5)
    fresh[:, ~planted] = fresh[np.arange(T) % period][:, ~planted]
    found = steps.gauges(fresh, planted, sigma=1.5, rate=RATE)
    assert found["repetition"].breach
    assert found["repetition"].measured > 0.5


def test_repetition_is_the_correlation_written_out() -> None:
    seen, planted = entries(1.5)
    out = seen[:, ~planted]
    for lag in (1, 7, T - 1):
        expected = (out[lag:] * out[:-lag]).mean() / (out**2).mean()
        assert steps.correlations(out)[lag - 1] == pytest.approx(expected)


def test_the_likelihood_ratio_is_the_mixtures() -> None:
    seen, _ = entries(0.8)
    density = lambda y: np.exp(-(y**2) / (2 * 0.8**2))  # noqa: E731
    ratio = np.log((RATE * density(seen - 1) + (1 - RATE) * density(seen)) / density(seen)).sum(0)
    assert steps.scores(seen, 0.8, RATE)["likelihood ratio"] == pytest.approx(ratio)


@pytest.mark.parametrize("seed", range(3))
def test_an_honest_engine_keeps_its_promise(seed: int) -> None:
    seen = watch(epsilon=2.0, coins=100, steps=4, seed=seed)
    assert seen.promised <= 2.0
    assert seen.bound.epsilon <= seen.promised
    assert not seen.off
    assert seen.gauges["noise"].measured == pytest.approx(seen.sigma, rel=0.1)
    share = seen.gauges["share"]
    assert share.measured == pytest.approx(1.0, abs=4 * share.error)


@pytest.mark.parametrize(
    ("broken", "gauge", "coins", "steps"),
    [
        pytest.param(noise_times(0.0), "noise", 100, 4, id="no noise"),
        pytest.param(noise_times(0.5), "noise", 100, 4, id="half the noise"),
        pytest.param(same_noise_every_step, "repetition", 100, 4, id="noise repeated"),
        pytest.param(noise_on_touched_rows_only, "noise", 100, 4, id="noise on touched rows only"),
        pytest.param(norm_without_cross_terms, "share", 600, 8, id="no cross term", marks=pytest.mark.full),
    ],
)
def test_a_broken_engine_is_seen_on_the_gauge(broken: Broken, gauge: str, coins: int, steps: int) -> None:
    assert gauge in watch(epsilon=4.0, broken=broken, coins=coins, steps=steps).off


@pytest.mark.full
@pytest.mark.parametrize(
    "broken",
    [noise_times(0.0), noise_times(0.1), same_noise_every_step, noise_on_touched_rows_only],
    ids=["no noise", "a tenth of the noise", "noise repeated", "noise on touched rows only"],
)
def test_the_lower_bound_passes_the_promise_of_an_engine_that_breaks_it(broken: Broken) -> None:
    seen = watch(epsilon=2.0, broken=broken, coins=1000)
    assert seen.bound.epsilon > seen.promised


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


CASES = [  # order, users, and what one more adds to how much noise
    (1.5, 20, 1, 1),
    (2, 300, 0.3, 0.5),
    (5, 20, 0, 2),  # one who adds nothing, but noise
    (15, 20, 0.3, 0.5),  # near the order at which one direction is infinite
    (15, 300, 1, 1),
]


def divergence(alpha: float, first: stats.rv_continuous, second: stats.rv_continuous) -> float:
    """D_α(first ‖ second) by quadrature."""
    width = 14 * max(first.std(), second.std())

    def density(y: float) -> float:
        return float(np.exp(alpha * first.logpdf(y) + (1 - alpha) * second.logpdf(y)))

    peak = integrate.quad(density, -20 * width, 20 * width, limit=2000, points=[-width, 0.0, width], epsabs=0)[0]
    return float(np.log(peak) / (alpha - 1))


@pytest.mark.full
@pytest.mark.parametrize(("alpha", "m", "x", "sigma"), CASES)
def test_both_directions_are_the_divergences_of_the_outputs(alpha: float, m: int, x: float, sigma: float) -> None:
    without, with_user = stats.norm(0, sigma * m**0.5), stats.norm(x, sigma * (m + 1) ** 0.5)
    assert theory.added(alpha, m, x, sigma) == pytest.approx(divergence(alpha, with_user, without), rel=1e-6, abs=1e-9)
    assert theory.removed(alpha, m, x, sigma) == pytest.approx(
        divergence(alpha, without, with_user), rel=1e-6, abs=1e-9
    )


def test_the_numbers_of_the_theorem() -> None:
    """d0 = 10, L = 1: ten coordinates, of which the first takes the whole vector."""
    assert theory.added(5.0, 20) == pytest.approx(0.160, abs=5e-4)
    assert theory.printed(5.0, 20) == pytest.approx(0.215, abs=5e-4)
    for alpha in (1.5, 3.0, 10.0):
        others = divergence(alpha, stats.norm(0, 51**0.5), stats.norm(0, 50**0.5))
        first = divergence(alpha, stats.norm(1, 51**0.5), stats.norm(0, 50**0.5))
        assert theory.added(alpha, 50, width=10) == pytest.approx(first + 9 * others, rel=1e-6)
