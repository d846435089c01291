"""What a run will spend, fixed before its first step: δ, the noise, and what is released before training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dprec.errors import UserError
from dprec.privacy.budget import PrivacyBudget, calibrate, steps_allowed
from dprec.privacy.ledger import Event, Ledger
from dprec.privacy.release import Release, release_events
from dprec.privacy.sampling import Sampling


@dataclass(frozen=True)
class Plan:
    """The noise of a run whose batches are drawn by one law.

    >>> sampling = Sampling("poisson", users=6040, expected_batch=1024, rate=1024 / 6040, seeded=False)
    >>> plan = Plan.of(sampling, steps=590, epsilon=8)
    >>> round(plan.sigma, 2), plan.epsilon_after(590) <= 8
    (2.31, True)
    """

    sampling: Sampling
    epsilon: float | None  # the budget; None: ε is only reported
    delta: float
    sigma: float  # noise per clipping norm in each step
    releases: Mapping[Release, Event]  # before training, each once

    @classmethod
    def of(
        cls,
        sampling: Sampling,
        steps: int,
        epsilon: float | None,
        delta: float | None = None,
        sigma: float | None = None,
        releases: Sequence[Release] = (),
    ) -> Plan:
        """Fix what is not given: δ is 1 / users, σ the least with which releases and steps keep the budget."""
        delta = 1 / max(2, sampling.users) if delta is None else delta
        if epsilon is None:
            if releases:
                raise UserError(
                    f"the model releases {releases[0].what} for a share of privacy.epsilon: give privacy.epsilon"
                )
            if sigma is None:
                raise ValueError("a plan needs an ε or a noise multiplier")
            return cls(sampling, epsilon, delta, sigma, {})
        budget = PrivacyBudget(epsilon, delta)
        events = release_events(budget, releases)
        if sigma is None:
            already = Ledger(dict.fromkeys(events.values(), 1))
            sigma = calibrate(budget, sampling.event, sampling.events(steps), already)
        return cls(sampling, epsilon, delta, sigma, events)

    def with_releases(self, ledger: Ledger) -> Ledger:
        """The ledger as it is once every release is on record, drawn anew."""
        for event in self.releases.values():
            ledger = ledger.after(event, 1)
        return ledger

    def epsilon_after(self, steps: int) -> float:
        """ε of a whole run of this many steps, its releases included."""
        event, events = self.sampling.event(self.sigma), self.sampling.events(steps)
        return self.with_releases(Ledger()).after(event, events).epsilon(self.delta)

    def steps_left(self, ledger: Ledger, done: int, wanted: int) -> int:
        """How many of the steps that are wanted the budget pays for, after the `done` ones that a ledger records."""
        if self.epsilon is None or wanted <= 0:
            return max(0, wanted)
        budget, event = PrivacyBudget(self.epsilon, self.delta), self.sampling.event(self.sigma)
        # All releases come before the first step: anew, too, where a run is resumed before it took one.
        ledger = ledger if done else self.with_releases(ledger)
        paid = steps_allowed(budget, ledger, event, self.sampling.events(wanted, done))
        return min(wanted, self.sampling.steps_of(paid, done))

    def settings(self) -> dict[str, Any]:
        """JSON-able: what must not change while a ledger goes on."""
        named = [[release.what, release.share] for release in self.releases]
        return {"releases": named, **self.sampling.settings()}
