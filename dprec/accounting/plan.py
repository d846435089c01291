"""The plan of a run, fixed before its first step: δ, the noise, and the releases before training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dprec.accounting.budget import PrivacyBudget, least_noise, most_steps
from dprec.accounting.chain import Ceiling
from dprec.accounting.ledger import Event, Ledger
from dprec.accounting.release import Release, release_events
from dprec.accounting.sampling import Sampling
from dprec.errors import UserError


@dataclass(frozen=True)
class Plan:
    """The noise of a run whose batches are all drawn in one way.

    >>> sampling = Sampling("poisson", users=6040, expected_batch=1024, rate=1024 / 6040, seeded=False)
    >>> plan = Plan.of(sampling, steps=590, epsilon=8)
    >>> round(plan.sigma, 2), plan.epsilon_after(590) <= 8
    (2.31, True)
    """

    sampling: Sampling
    epsilon: float | None  # the budget; None: ε is only reported
    delta: float
    sigma: float  # noise per clipping norm in each step
    releases: Mapping[Release, Event]  # before training or a period of it, each once
    before: tuple[Event, ...] = ()  # events recorded before the releases
    earlier: Mapping[Event, int] = field(default_factory=dict)  # events of the runs that this one continues
    ceiling: Ceiling | None = None  # of all these runs together

    @classmethod
    def of(
        cls,
        sampling: Sampling,
        steps: int,
        epsilon: float | None,
        delta: float | None = None,
        sigma: float | None = None,
        releases: Sequence[Release] = (),
        before: Sequence[Event] = (),
        earlier: Mapping[Event, int] | None = None,
        ceiling: Ceiling | None = None,
    ) -> Plan:
        """Choose what is not given: δ is 1 / users, σ is the smallest with which releases and steps keep the budget.

        If neither ε nor σ is given, the run gets its share of the ceiling.
        """
        delta, earlier = 1 / max(2, sampling.users) if delta is None else delta, earlier or {}
        shares = ceiling is not None and epsilon is None and sigma is None
        if ceiling is not None and shares:
            epsilon = ceiling.share(Ledger(earlier), delta)
        events: Mapping[Release, Event] = {}
        if epsilon is not None:
            budget = PrivacyBudget(epsilon, delta)
            events = release_events(budget, releases)
        elif releases:
            raise UserError(f"{releases[0].what}: released for a share of privacy.epsilon, so give privacy.epsilon")
        already = Ledger(Counter([*before, *events.values()]))
        if sigma is None:
            if epsilon is None:
                raise ValueError("a plan needs an ε or a noise multiplier")
            sigma = least_noise(budget, lambda s: already.after_all(sampling.spending(s, steps)), steps, already)
        plan = cls(sampling, epsilon, delta, sigma, events, tuple(before), earlier, ceiling)
        if ceiling is None or (after := plan.epsilon_after(steps)) <= ceiling.epsilon:
            return plan
        if not shares:
            raise ceiling.passed(Ledger(earlier), delta, after)
        most, all_before = PrivacyBudget(ceiling.epsilon, delta), already.after_all(earlier)
        sigma = least_noise(most, lambda s: all_before.after_all(sampling.spending(s, steps)), steps, all_before)
        return replace(plan, sigma=sigma)

    def with_releases(self, ledger: Ledger) -> Ledger:
        """Return a new ledger that also has every release."""
        return ledger.after_all(Counter(self.releases.values()))

    def ledger_after(self, steps: int) -> Ledger:
        """Return the ledger of a whole run of this many steps, its releases included."""
        return self.with_releases(Ledger(Counter(self.before))).after_all(self.sampling.spending(self.sigma, steps))

    def epsilon_after(self, steps: int, resolution: float = 1.0) -> float:
        """Return ε of a whole run of this many steps, with its releases and earlier runs, at this `resolution`."""
        return self.ledger_after(steps).after_all(self.earlier).epsilon(self.delta, resolution)

    def steps_left(self, ledger: Ledger, done: int, wanted: int) -> int:
        """Return how many of the wanted steps the budget pays for, after the `done` ones that a ledger records."""
        if wanted <= 0:
            return 0
        # Releases come before the first step, or the first of their period; also again, if a run resumes before its
        # first step.
        coming = [event for event in self.releases.values() if not done or event not in ledger.events]
        ledger = ledger.after_all(Counter(coming))
        if self.epsilon is not None:
            wanted = self._within(self.epsilon, ledger, done, wanted)
        if self.ceiling is not None:
            wanted = self._within(self.ceiling.epsilon, ledger.after_all(self.earlier), done, wanted)
        return wanted

    def _within(self, epsilon: float, ledger: Ledger, done: int, wanted: int) -> int:
        if self.sigma == 0:
            return 0
        budget, sampling = PrivacyBudget(epsilon, self.delta), self.sampling
        return most_steps(budget, lambda steps: ledger.after_all(sampling.spending(self.sigma, steps, done)), wanted)

    def too_dear(self) -> UserError:
        """Return the error for a budget that does not pay for a single step."""
        epsilon = self.epsilon if self.ceiling is None else self.ceiling.epsilon
        return UserError(
            f"privacy.epsilon={epsilon:g} does not pay for one step at noise multiplier {self.sigma:g}: "
            "raise epsilon or noise_multiplier"
        )

    def settings(self) -> dict[str, Any]:
        """JSON-able: settings that must not change while a ledger continues."""
        named = [[r.what, r.share] if r.period is None else [r.what, r.share, r.period] for r in self.releases]
        first = {"before": [[e.what, e.noise_multiplier, e.delta] for e in self.before]} if self.before else {}
        return {"releases": named, **first, **self.sampling.settings()}


# The settings of a private run on which its guarantee depends. A resumed run must not change them.


def run_settings(given: Mapping[str, Any], plan: Plan, noise_seeded: bool) -> dict[str, Any]:
    """Return the given settings and the plan, JSON-able."""
    asked = {f"given_{name}": value for name, value in given.items()}
    own = {"delta": plan.delta, "sigma": plan.sigma, "noise_seeded": noise_seeded}
    return asked | own | plan.settings()


def refuse_change(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to continue if a setting has changed.

    >>> refuse_change({"given_epsilon": 8.0, "users": 6040}, {"epsilon": 8.0, "users": 6039})
    Traceback (most recent call last):
    dprec.errors.UserError: cannot resume: users was 6040 and is now 6039; keep it, or start a new run
    """
    for name, value in now.items():
        old = before.get(f"given_{name}", before.get(name))
        if value != old:
            raise UserError(f"cannot resume: {name} was {old} and is now {value}; keep it, or start a new run")


def refuse_part(state: Mapping[str, Any]) -> None:
    """Refuse an incomplete state of a run in a checkpoint."""
    if missing := {"settings", "ledger", "steps"} - state.keys():
        raise UserError(f"incomplete checkpoint: its privacy state lacks {', '.join(sorted(missing))}")


def refuse_unrecorded(steps: int, ledger: Ledger, sampling: Sampling) -> None:
    """Refuse a ledger that records fewer steps of training than were taken."""
    trained = sum(count for event, count in ledger.events.items() if event.what == "training")
    if trained < sampling.events(steps):
        raise UserError(f"incomplete checkpoint: its ledger does not hold its {steps} steps")
