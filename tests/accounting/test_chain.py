"""A chain of runs: what a ceiling lets the next one spend."""

from __future__ import annotations

import json

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

from dprec.accounting.chain import Ceiling, Spent, refuse_other_epsilon, together
from dprec.accounting.ledger import Event, Ledger
from dprec.accounting.plan import Plan
from dprec.accounting.release import Release
from dprec.accounting.sampling import Sampling
from dprec.errors import UserError

DELTA, STEPS = 1e-4, 30
FIRST, LATER = "2026-01-01T03:00:00+00:00", "2026-01-08T01:00:00+00:00"


def night(number: int, earlier: Ledger, **given: object) -> Plan:
    users = 1000 + 37 * number  # more each night, so every night has another rate
    sampling = Sampling("poisson", users, 100, 100 / users, seeded=False)
    return Plan.of(sampling, STEPS, given.pop("epsilon", None), DELTA, earlier=earlier.events, **given)  # type: ignore[arg-type]


@pytest.mark.full
@pytest.mark.parametrize("releases", [(), (Release("item frequencies", 0.2),)])
def test_nights_share_a_ceiling_and_never_pass_it(releases: tuple[Release, ...]) -> None:
    earlier, theirs, shares = Ledger(), PLDAccountant(), []
    for number in range(5):
        plan = night(number, earlier, ceiling=Ceiling(3.0, 5 - number), releases=releases)
        assert plan.steps_left(Ledger(), 0, STEPS) == STEPS
        shares.append(plan.ledger_after(STEPS).epsilon(DELTA))
        earlier = earlier.after_all(plan.ledger_after(STEPS).events)
        for event, count in plan.ledger_after(STEPS).events.items():
            gaussian = dp_event.GaussianDpEvent(event.noise_multiplier)
            theirs.compose(dp_event.PoissonSampledDpEvent(event.rate, gaussian), count)
    assert 2.7 < earlier.epsilon(DELTA) <= 3.0
    assert earlier.epsilon(DELTA) == pytest.approx(theirs.get_epsilon(DELTA), rel=2e-3)
    assert max(shares) < 1.4 * min(shares)
    with pytest.raises(UserError, match=r"this run would make ε 3\.\d+ of 3, and about 0\.\d+ is left"):
        night(5, earlier, epsilon=0.9, ceiling=Ceiling(3.0))


@pytest.mark.full
def test_what_is_left_is_a_cost_that_fits_and_nothing_is_left_of_a_spent_ceiling() -> None:
    earlier = night(0, Ledger(), epsilon=2.0).ledger_after(STEPS)
    left = Ceiling(3.0).share(earlier, DELTA)
    assert 2.7 < night(1, earlier, epsilon=0.98 * left, ceiling=Ceiling(3.0)).epsilon_after(STEPS) <= 3
    with pytest.raises(UserError, match="nothing is left: raise its epsilon"):
        night(1, earlier, ceiling=Ceiling(earlier.epsilon(DELTA)))


def test_a_ceiling_counts_days_from_the_first_run() -> None:
    budget = {"epsilon": 8.0, "days": 8.0}
    assert Ceiling.of(budget, FIRST, FIRST) == Ceiling(8.0, 8)
    assert Ceiling.of(budget, FIRST, LATER) == Ceiling(8.0, 1)  # 6.9 days later, on the eighth
    with pytest.raises(UserError, match="its 7 days since 2026-01-01 are over"):
        Ceiling.of(budget | {"days": 7.0}, FIRST, LATER)


def test_a_promise_is_that_of_its_events() -> None:
    """One of an altered file, or one that `dprec tune` has made, is of more or less than its events."""
    ledger = Ledger({Event("poisson_gaussian", 2.0, 0.1): 30})
    told = {
        "guarantee": "private, where neighbouring data sets differ by adding or removing one record (with ...",
        "epsilon": ledger.epsilon(DELTA),
        "delta": DELTA,
        "earlier": [Spent("monday", FIRST, 9, DELTA, "adding or removing one record", ledger).state_dict()],
        **ledger.state_dict(),
    }
    promise = json.loads(json.dumps(told))
    monday, own = Spent.all_of(promise, "tuesday")
    assert (monday.run, monday.began, monday.units, own.run) == ("monday", FIRST, 9, "tuesday")
    assert together([monday, own]).events == {Event("poisson_gaussian", 2.0, 0.1): 60}
    with pytest.raises(UserError, match="tuesday states ε = 1"):
        refuse_other_epsilon(promise, [monday, own])
    refuse_other_epsilon(promise | {"epsilon": together([monday, own]).epsilon(DELTA)}, [monday, own])
    with pytest.raises(UserError, match="tuesday is not private"):
        Spent.all_of(promise | {"guarantee": "not private: no privacy block"}, "tuesday")
    with pytest.raises(UserError, match="tuesday has periods"):
        Spent.all_of(promise | {"events": [{**promise["events"][0], "period": 1}]}, "tuesday")
