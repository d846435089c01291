"""ε against closed forms, another accountant and the laws every accountant obeys."""

import json
import math

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from opacus.accountants.prv import PRVAccountant

from dprec.accounting import composition as accounting
from dprec.accounting.ledger import Event, Ledger
from dprec.errors import UserError

USERS, RATE = 6040, 1024 / 6040


def sampled(sigma: float, rate: float = RATE, what: str = "training") -> Event:
    return Event("poisson_gaussian", sigma, rate, what)


def gaussian_delta(epsilon: float, sigma: float) -> mpmath.mpf:
    """δ(ε) of one Gaussian release (Balle and Wang 2018), in fifty digits."""
    with mpmath.workdps(50):
        e, s = mpmath.mpf(epsilon), mpmath.mpf(sigma)
        return mpmath.ncdf(1 / (2 * s) - e * s) - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s)


@pytest.mark.parametrize(
    ("kind", "sigma", "count", "delta"),
    [
        pytest.param("gaussian", 1.0, 1, 1e-6, id="one release"),
        pytest.param("gaussian", 0.03, 1, 1e-12, id="hardly any noise"),
        pytest.param("poisson_gaussian", 20.0, 590, 1e-3, id="a run in which everybody is in every step"),
        pytest.param("poisson_gaussian", 3000.0, 10**6, 1e-12, id="a million steps"),
    ],
)
def test_without_sampling_it_is_the_closed_form(kind: str, sigma: float, count: int, delta: float) -> None:
    epsilon = Ledger({Event(kind, sigma): count}).epsilon(delta)
    whole = sigma / math.sqrt(count)
    assert gaussian_delta(epsilon, whole) <= delta
    assert gaussian_delta(epsilon * (1 - 1e-6), whole) > delta


@pytest.mark.parametrize(("count", "delta"), [(1, 1e-7), (590, 1e-3), (5000, 1e-12), (10**6, 1e-7), (10**6, 1e-12)])
def test_fft_composition_never_falls_below_the_closed_form(count: int, delta: float) -> None:
    whole = 2.0
    # A rate just below 1 takes the numerical path; its ε differs from that of rate 1 by far less than 1e-6.
    epsilon = Ledger({sampled(whole * math.sqrt(count), 1 - 1e-12): count}).epsilon(delta)
    assert gaussian_delta(epsilon, whole) <= delta * (1 + 1e-6)
    looser = 0.05 if delta < accounting.ROUNDING * 100 * (count + 10) else 0.002
    assert gaussian_delta(epsilon * (1 - looser), whole) > delta


@pytest.mark.parametrize(
    ("sigma", "rate", "interval"),
    [(2.3, 0.17, 1e-3), (1.0, 1e-7, 1e-3), (0.01, 0.5, 1.0), (0.3, 0.999, 0.01), (50.0, 0.9, 1e-4), (2.0, 1.0, 1e-3)],
)
def test_one_step_has_the_loss_that_the_library_gives_it(sigma: float, rate: float, interval: float) -> None:
    ours = accounting._one_use(sigma, rate, interval)
    theirs = pld.from_gaussian_mechanism(sigma, value_discretization_interval=interval, sampling_prob=rate)
    for epsilon in (0.0, 0.01, 0.5, 5.0, 50.0, 5000.0):
        expected = theirs.get_delta_for_epsilon(epsilon)
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-14)


@pytest.mark.parametrize(("sigma", "rate"), [(2.3, 0.17), (1.0, 1e-7), (0.01, 0.5), (0.3, 0.999), (1e5, 0.1)])
def test_a_steps_renyi_divergences_are_those_of_the_library(sigma: float, rate: float) -> None:
    accountant = RdpAccountant(accounting.ORDERS)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)))
    ours = accounting._divergences(sigma, rate, replaced=False, fixed=False)
    rounding = 2e-15 * np.array(accounting.ORDERS)  # of which renyi_epsilon adds more than twice as much
    assert np.all(np.abs(ours - accountant.rdp) <= 1e-12 * accountant.rdp + rounding)


@pytest.mark.filterwarnings("ignore:Optimal order", "ignore:divide by zero")
def test_different_events_compose_as_in_opacus() -> None:
    peer = PRVAccountant()
    ledger = Ledger({sampled(3.5): 400, sampled(1.5, 0.01): 300, Event("gaussian", 6.0): 1})
    peer.history = ledger.opacus_history()
    assert peer.history == [(3.5, RATE, 400), (1.5, 0.01, 300), (6.0, 1.0, 1)]
    assert Ledger.from_opacus(peer.history).epsilon(1e-5) == pytest.approx(ledger.epsilon(1e-5), rel=1e-6)
    assert ledger.epsilon(1e-5) == pytest.approx(peer.get_epsilon(delta=1e-5, eps_error=0.01), abs=0.012)


def test_nothing_recorded_costs_nothing_and_no_noise_everything() -> None:
    ledger = Ledger()
    assert ledger.epsilon(1e-5) == 0
    ledger.record(sampled(3.0), 0)
    assert not ledger.events
    ledger.record(Event("gaussian", 0.0, what="catalogue"))
    assert ledger.epsilon(1e-5) == math.inf


def test_state_survives_json() -> None:
    ledger = Ledger({sampled(3.293): 590, Event("gaussian", 1 / 3, what="item frequencies"): 1})
    other = Ledger({sampled(1.0): 5})
    other.load_state_dict(json.loads(json.dumps(ledger.state_dict())))
    assert dict(other.events) == dict(ledger.events)
    assert other.epsilon(1e-5) == ledger.epsilon(1e-5)
    other.record(sampled(3.293))
    assert other.epsilon(1e-5) > ledger.epsilon(1e-5)


def test_periods_compose_in_parallel_and_what_everybody_is_in_in_sequence() -> None:
    cheap, dear = Event("poisson_gaussian", 2.0, 0.1, period=0), Event("poisson_gaussian", 1.0, 0.2, period=1)
    alone = Ledger({Event("poisson_gaussian", 1.0, 0.2): 9})
    assert Ledger({cheap: 5, dear: 9}).epsilon(1e-5) == alone.epsilon(1e-5)
    everybody = Event("gaussian", 4.0)
    both = Ledger({everybody: 1, cheap: 5, dear: 9})
    assert both.epsilon(1e-5) == alone.after(everybody, 1).epsilon(1e-5)
    assert both.renyi_epsilon(1e-5) == alone.after(everybody, 1).renyi_epsilon(1e-5)
    assert Ledger({cheap: 5, dear: 9, Event("gaussian", 4.0, period=0): 1}).epsilon(1e-5) == alone.epsilon(1e-5)
    again = Ledger()
    again.load_state_dict(both.state_dict())
    assert again.events == both.events


def test_the_coarse_figure_is_an_upper_bound_close_to_the_fine_one() -> None:
    for count in (1, 59, 590):
        ledger = Ledger({sampled(3.293): count})
        fine, coarse = ledger.epsilon(1 / USERS), ledger.epsilon(1 / USERS, accounting.COARSE_GRID)
        assert fine <= coarse <= fine + 1e-3


@settings(max_examples=8, deadline=None)
@given(
    sigma=st.floats(0.5, 20),
    rate=st.floats(1e-4, 1),
    count=st.integers(1, 3000),
    delta=st.sampled_from([1e-3, 1e-6]),
)
def test_monotone(sigma: float, rate: float, count: int, delta: float) -> None:
    def epsilon(s: float, q: float, n: int, d: float) -> float:
        return Ledger({sampled(s, q): n}).epsilon(d, accounting.COARSE_GRID)

    here, slack = epsilon(sigma, rate, count, delta), 1e-3
    assume(here < 100)  # beyond, where nothing is protected, the bounds are loose
    assert epsilon(sigma, rate, 2 * count, delta) >= here * (1 - slack) - 1e-6
    assert epsilon(sigma, rate / 2, count, delta) <= here * (1 + slack) + 1e-6
    assert epsilon(1.5 * sigma, rate, count, delta) <= here * (1 + slack) + 1e-6
    assert epsilon(sigma, rate, count, delta / 10) >= here * (1 - slack) - 1e-6


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "laplace", "noise_multiplier": 1.0},
        {"kind": "gaussian", "noise_multiplier": -1.0},
        {"kind": "gaussian", "noise_multiplier": math.nan},
        {"kind": "gaussian", "noise_multiplier": math.inf},
        {"kind": "gaussian", "noise_multiplier": 1.0, "rate": 0.5},
        {"kind": "poisson_gaussian", "noise_multiplier": 1.0, "rate": 0.0},
        {"kind": "poisson_gaussian", "noise_multiplier": 1.0, "rate": 1.1},
    ],
)
def test_impossible_events_are_refused_in_one_line(fields: dict) -> None:
    with pytest.raises(UserError):
        Event(**fields)


@pytest.mark.parametrize("state", [{}, {"events": [{"kind": "gaussian"}]}, {"events": [{"count": 1, "sigma": 2}]}])
def test_a_damaged_state_is_refused(state: dict) -> None:
    with pytest.raises(UserError, match="ledger cannot be read"):
        Ledger().load_state_dict(state)


def test_opacus_has_no_event_without_gaussian_noise() -> None:
    with pytest.raises(UserError, match=r"^Opacus has no event like a sum \(bounded\)"):
        Ledger({Event("bounded", 1.0, what="a sum"): 1}).opacus_history()
