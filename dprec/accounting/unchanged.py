"""The settings of a private run on which its guarantee depends. A resumed run must not change them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dprec.accounting.ledger import Ledger
from dprec.accounting.plan import Plan
from dprec.accounting.sampling import Sampling
from dprec.errors import UserError


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
    """Refuse a checkpoint's state that does not hold all of a run's."""
    if missing := {"settings", "ledger", "steps"} - state.keys():
        raise UserError(f"the checkpoint's privacy state lacks {', '.join(sorted(missing))}: it is not whole")


def refuse_unrecorded(steps: int, ledger: Ledger, sampling: Sampling) -> None:
    """Refuse a ledger that records fewer steps of training than were taken."""
    trained = sum(count for event, count in ledger.events.items() if event.what == "training")
    if trained < sampling.events(steps):
        raise UserError(f"the checkpoint's ledger does not hold its {steps} steps: it is not whole")
