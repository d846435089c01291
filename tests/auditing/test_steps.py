from __future__ import annotations

import numpy as np
import pytest

from dprec.accounting import composition as accounting
from dprec.accounting.ledger import Event, Ledger
from dprec.auditing import steps
from dprec.auditing.group import group_epsilon, group_epsilons, most_exposed

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


def test_a_group_of_one_has_the_epsilon_of_the_ledger() -> None:
    uses = {(1.1, 0.02): 30, (8.0, 1.0): 1}
    assert group_epsilon(uses, 1e-5, 1) == pytest.approx(accounting.epsilon(uses, 1e-5), abs=0.02)


def test_a_group_whose_users_are_always_drawn_is_one_user_with_less_noise() -> None:
    assert group_epsilon({(6.0, 1.0): 5}, 1e-6, 3) == pytest.approx(accounting.epsilon({(2.0, 1.0): 5}, 1e-6), abs=0.02)


def test_larger_groups_are_promised_less_and_hopeless_ones_nothing() -> None:
    found = group_epsilons(Ledger({Event("poisson_gaussian", 2.0, 0.05): 20}), 1e-5, [1, 2, 4, 1000])
    assert found[0] < found[1] < found[2] < found[3]
    assert found[3] == np.inf
    assert group_epsilons(Ledger({Event("gaussian", 0.0): 10}), 1e-5, [1]) == [np.inf]


@pytest.mark.parametrize("event", [Event("bounded", 0.5), Event("subset_gaussian", 2.0, 0.05)])
def test_of_what_is_not_poisson_and_gaussian_a_group_is_promised_nothing(event: Event) -> None:
    ledger = Ledger({event: 1})
    assert group_epsilons(ledger, 1e-5, [1, 2]) == [ledger.epsilon(1e-5), np.inf]
    assert ledger.epsilon(1e-5) > 0


def test_what_epsilon_allows_the_median_exposure() -> None:
    """Randomised response over ranks is the worst: the top e^-ε / 2 of all ranks with probability a half."""
    assert most_exposed(0.0, 0.0) == pytest.approx(1.0)
    assert most_exposed(np.log(2.0), 0.0) == pytest.approx(2.0)
    assert most_exposed(1.0, 0.1) > most_exposed(1.0, 0.0)
