"""The price of a choice among private runs, against the library's, simulation, and exact enumeration."""

import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.special import logsumexp

from dprec.accounting.budget import PrivacyBudget
from dprec.accounting.composition import ORDERS
from dprec.accounting.ledger import Event, Ledger
from dprec.accounting.plan import Plan
from dprec.accounting.repeated import Price, Repeated
from dprec.accounting.sampling import Sampling
from dprec.errors import UserError

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


def test_a_choice_tells_more_than_one_run() -> None:
    one, other = PAIRS[1]
    assert np.abs(np.log(shown(20, other) / shown(20, one))).max() > 1.4 * np.abs(np.log(other / one)).max()


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
