"""A chain of runs, each of which continues the one before: what all of them spent, and what the next one may spend.

A person can be in the data of every run, so all events of all runs compose for that person.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from dprec.accounting.budget import PrivacyBudget, least_noise
from dprec.accounting.ledger import Event, Ledger, round_up
from dprec.errors import UserError

NOTHING = 1e-3  # of a ceiling: less is too little for a run
ROUNDING = 0.01  # how much a stated ε may differ from that of its events, on other machines or in other versions


@dataclass(frozen=True)
class Spent:
    """What one run has released so far, whether it is finished or not."""

    run: str
    began: str | None  # when, in UTC; None for a run of a version that did not record it
    units: int | None  # users, or records, that training drew from
    delta: float
    neighbours: str  # how neighbours differ, in the words of the guarantee
    ledger: Ledger

    @classmethod
    def all_of(cls, promise: Mapping[str, Any], run: str) -> list[Spent]:
        """Return the runs that a promise covers, in order: those that its run continues, and the run itself.

        `promise` is the content of a run's privacy.json, or what `Privacy.promise()` returned.
        """
        said = str(promise["guarantee"]).partition("neighbouring data sets differ by ")[2]
        neighbours = said.partition(" (")[0].partition(",")[0]
        own = {"run": run, "neighbours": neighbours}
        found = [*map(cls.from_state, promise.get("earlier", ())), cls.from_state({**promise, **own})]
        if not found[-1].ledger.events or not neighbours:
            raise UserError(f"{run} is not private, so no ε holds for it together with others: leave it out")
        if any(event.period is not None for event in together(found).events):
            raise UserError(f"{run} has periods, which other runs may cut elsewhere: leave it out")
        return found

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Spent:
        ledger = Ledger()
        ledger.load_state_dict({"events": state.get("events", [])})
        began, units, delta = state.get("began"), state.get("units"), float(state["delta"] or 0)
        return cls(state["run"], began, units, delta, state["neighbours"], ledger)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able: what later runs keep about this one."""
        named = {name: getattr(self, name) for name in ("run", "began", "units", "delta", "neighbours")}
        return named | self.ledger.state_dict()


def count_of(runs: Sequence[Spent]) -> str:
    """
    >>> count_of([])
    '0 earlier runs'
    """
    return f"{len(runs)} earlier run{'s' * (len(runs) != 1)}"


def together(runs: Sequence[Spent]) -> Ledger:
    """Return one ledger of all runs, for a person who is in the data of each."""
    ledger = Ledger()
    for spent in runs:
        ledger = ledger.after_all(spent.ledger.events)
    return ledger


def refuse_other_epsilon(promise: Mapping[str, Any], runs: Sequence[Spent]) -> None:
    """Refuse a promise whose ε is not that of its events: it was changed, or covers more than these events."""
    stated, found = promise["epsilon"], together(runs).epsilon(runs[-1].delta)
    if stated is None or abs(stated - found) > ROUNDING * found:
        raise UserError(
            f"{runs[-1].run} states ε = {stated}, and its events cost {round_up(found)}: somebody changed it, or dprec "
            "tune made it; continue another run"
        )


def now() -> str:
    """Return the present time as runs record it."""
    return datetime.now(timezone.utc).isoformat()


@dataclass(frozen=True)
class Ceiling:
    """The most that all runs of a chain may spend together, and how many runs share what is left.

    >>> night = Ceiling(epsilon=8, runs=365).share(Ledger(), delta=1e-5)
    >>> round(night, 3)
    0.293
    """

    epsilon: float
    runs: int = 1

    @classmethod
    def of(cls, budget: Mapping[str, float], first: str, now: str) -> Ceiling:
        """Return the ceiling of privacy.budget_over_time for a run that begins now, with one run on each day left."""
        days, passed = budget["days"], (datetime.fromisoformat(now).date() - datetime.fromisoformat(first).date()).days
        if passed >= days:
            raise UserError(
                f"privacy.budget_over_time: its {days:g} days since {first[:10]} are over: give more days, and epsilon"
            )
        return cls(budget["epsilon"], math.ceil(days - passed))

    def share(self, earlier: Ledger, delta: float) -> float:
        """Return the ε of the next run, if all remaining runs cost the same, as Gaussian mechanisms compose."""
        if earlier.epsilon(delta) > (1 - NOTHING) * self.epsilon:
            raise UserError(
                f"privacy.budget_over_time: {round_up(earlier.epsilon(delta))} of ε = {self.epsilon:g} is spent, and "
                "nothing is left: raise its epsilon"
            )
        budget = PrivacyBudget(self.epsilon, delta)
        sigma = least_noise(budget, lambda s: earlier.after(Event("gaussian", s), self.runs), self.runs, earlier)
        return Ledger(Counter([Event("gaussian", sigma)])).epsilon(delta)

    def passed(self, earlier: Ledger, delta: float, after: float) -> UserError:
        """Return the error for a run with which all runs together would exceed the ceiling."""
        left = replace(self, runs=1).share(earlier, delta)
        return UserError(
            f"privacy.budget_over_time: this run would make ε {round_up(after)} of {self.epsilon:g}, and about "
            f"{left:.2g} is left: lower privacy.epsilon"
        )
