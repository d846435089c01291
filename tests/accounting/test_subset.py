"""Batches of a fixed size and bounded mechanisms in the ledger, against integrals and the laws of composition."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dprec.accounting.budget import PrivacyBudget, calibrate
from dprec.accounting.composition import subset_deltas
from dprec.accounting.ledger import Event, Ledger
from dprec.errors import UserError


def subset(sigma: float, rate: float, what: str = "training") -> Event:
    return Event("subset_gaussian", sigma, rate, what)


@pytest.mark.parametrize(("sigma", "rate"), [(1.3, 0.2), (0.7, 0.01), (3.0, 0.9)])
@pytest.mark.parametrize("loss", [-1.0, -0.1, 0.0, 0.05, 0.8])
def test_the_loss_is_that_of_the_worse_of_both_directions(sigma: float, rate: float, loss: float) -> None:
    def replaced(x: float) -> float:
        return norm.pdf(x, 1, sigma)

    def stayed(x: float) -> float:
        return norm.pdf(x, 0, sigma)

    def mixed(x: float, y: float) -> float:
        return rate * x + (1 - rate) * y

    alpha, ends = math.exp(loss), (-12 * sigma, 1 + 12 * sigma)
    there = quad(lambda x: max(0, mixed(replaced(x), stayed(x)) - alpha * stayed(x)), *ends, limit=400)[0]
    back = quad(lambda x: max(0, replaced(x) - alpha * mixed(stayed(x), replaced(x))), *ends, limit=400)[0]
    assert subset_deltas(np.array([loss]), sigma, rate)[0] == pytest.approx(max(there, back), abs=1e-7)


def test_a_batch_of_everybody_is_one_gaussian() -> None:
    assert Ledger({subset(3.0, 1.0): 4}).epsilon(1e-6) == Ledger({Event("gaussian", 3.0): 4}).epsilon(1e-6)


def test_one_draw_is_the_formula_of_amplification() -> None:
    epsilon, sigma, rate = 0.9, 1.1, 0.05
    delta = rate * subset_deltas(np.array([math.log1p(math.expm1(epsilon) / rate)]), sigma, 1.0)[0]
    assert Ledger({subset(sigma, rate): 1}).epsilon(float(delta)) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize(("sigma", "rate", "count"), [(2.0, 0.17, 590), (1.0, 0.01, 1000)])
def test_replacing_costs_more_than_adding_and_less_than_renyi_says(sigma: float, rate: float, count: int) -> None:
    ledger = Ledger({subset(sigma, rate): count})
    added = Ledger({Event("poisson_gaussian", sigma, rate): count})
    assert added.epsilon(1e-5) < ledger.epsilon(1e-5) < ledger.renyi_epsilon(1e-5)
    assert ledger.epsilon(1e-5, 10) == pytest.approx(ledger.epsilon(1e-5), rel=1e-2)


def test_two_steps_cost_at_least_what_one_pair_of_neighbours_shows() -> None:
    """A record that is 1 in one data set and 0 in the other, among zeros: δ of two steps, by a fine grid."""
    sigma, rate, epsilon = 0.8, 0.3, 1.5
    x = np.linspace(-8, 9, 3401)
    p, q = rate * norm.pdf(x, 1, sigma) + (1 - rate) * norm.pdf(x, 0, sigma), norm.pdf(x, 0, sigma)
    shown = np.maximum(np.outer(p, p) - math.exp(epsilon) * np.outer(q, q), 0).sum() * (x[1] - x[0]) ** 2
    assert Ledger({subset(sigma, rate): 2}).epsilon(float(shown)) >= epsilon * (1 - 1e-3)


def test_noise_is_calibrated_for_batches_of_a_fixed_size() -> None:
    budget = PrivacyBudget(2.0, 1e-6)
    sigma = calibrate(budget, lambda s: subset(s, 0.05), steps=100)
    assert 1.99 < Ledger({subset(sigma, 0.05): 100}).epsilon(1e-6) <= 2.0


def test_bounded_events_add_up() -> None:
    ledger = Ledger({Event("bounded", 2.0): 3, Event("bounded", 1.0, delta=1e-6): 1})
    assert ledger.epsilon(1e-6) == 2.5
    assert ledger.epsilon(1e-7) == math.inf
    assert Ledger({Event("bounded", 4.0): 2}).epsilon(0.0) == 0.5
    both = ledger.after(Event("gaussian", 3.0), 1)
    assert both.epsilon(2e-6) == pytest.approx(2.5 + Ledger({Event("gaussian", 3.0): 1}).epsilon(1e-6))
    assert both.epsilon(1e-6) == math.inf
    assert Ledger({Event("bounded", 0.0): 1}).epsilon(1e-6) == math.inf


def test_new_events_survive_json() -> None:
    ledger = Ledger({Event("bounded", 1.0, what="a run", delta=1e-7): 1, subset(2.0, 0.25): 7})
    other = Ledger()
    other.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert dict(other.events) == dict(ledger.events)


def test_neighbours_do_not_mix() -> None:
    ledger = Ledger({subset(2.0, 0.1): 1})
    with pytest.raises(UserError, match="different neighbours"):
        ledger.record(Event("poisson_gaussian", 2.0, 0.1))
    assert len(ledger.events) == 1
    both = {subset(2.0, 0.1): 1, Event("poisson_gaussian", 2.0, 0.1): 1}
    with pytest.raises(UserError, match="different neighbours"):
        Ledger(both)
    entries = [event for known in both for event in Ledger({known: 1}).state_dict()["events"]]
    with pytest.raises(UserError, match="different neighbours"):
        ledger.load_state_dict({"events": entries})
    assert dict(ledger.events) == {subset(2.0, 0.1): 1}


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "bounded", "noise_multiplier": 1.0, "rate": 0.5},
        {"kind": "bounded", "noise_multiplier": 1.0, "delta": 1.0},
        {"kind": "gaussian", "noise_multiplier": 1.0, "delta": 1e-6},
        {"kind": "subset_gaussian", "noise_multiplier": 1.0, "rate": 0.0},
    ],
)
def test_impossible_events_are_refused(fields: dict) -> None:
    with pytest.raises(UserError):
        Event(**fields)
