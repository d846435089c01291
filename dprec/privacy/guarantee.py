"""The sentence that states a run's guarantee, its assumptions and what it does not cover."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dprec.accounting.chain import Spent, count_of, together
from dprec.accounting.ledger import Event, Ledger, round_up
from dprec.accounting.plan import Plan
from dprec.accounting.sampling import Sampling
from dprec.gradients.clipping import Clipping


@dataclass(frozen=True)
class Unit:
    """The words of the sentence for one unit of privacy: a user or a record."""

    present: str  # how neighbours differ under Poisson sampling
    replaced: str  # and under shuffling
    not_covered: str  # because of what the unit is


COARSE_GRADIENTS = (
    "what the presence of one moves the gradients of all others by, through roundings to bfloat16 that depend on the "
    "shape of the batch, "
)
UNEVEN_GRADIENTS = (
    "what the presence of one moves the gradients of others by beyond 3e-6 of max_norm each, which noise is made for, "
    "since this processor or loader was seen to round a user's numbers by who else is in a batch, "
)
UNITS = {
    "user": Unit(
        present="adding or removing one user's whole history",
        replaced="replacing one user's whole history by an empty one, which adds nothing to any step",
        not_covered="logged losses, metrics on the users' held-out items or records",
    ),
    "record": Unit(
        present="adding or removing one record",
        replaced="leaving the place of one record empty, so that nothing is added there in any step",
        not_covered="people with several records, for whom it weakens with their number, logged losses, "
        "metrics on held-out records",
    ),
}


def neighbours_of(sampling: Sampling) -> str:
    """Return how neighbouring data sets differ."""
    unit = UNITS[sampling.unit]
    return unit.present if sampling.kind == "poisson" else unit.replaced


def guarantee(
    plan: Plan,
    ledger: Ledger,
    clipping: Clipping,
    steps: int,
    repeatable: bool,
    assumptions: Sequence[str] = (),
    split: str = "",
    rounded: str = "",
    earlier: Sequence[Spent] = (),
) -> str:
    """Return the sentence: guarantee, neighbours, mechanism, assumptions, and what is not covered.

    `split` describes how a step's noise is divided, `rounded` which rounding of gradients is not covered. `earlier`
    are the runs that this one continues.
    """
    if repeatable:
        return (
            "not private: the noise or the batches follow from a fixed seed (privacy.noise_seed or "
            "data.sampling_seed), and anyone who knows the seed can remove the noise"
        )
    epsilon, sampling = together(earlier).after_all(ledger.events).epsilon(plan.delta), plan.sampling
    if math.isinf(epsilon):
        return f"not private: noise multiplier {plan.sigma:g} gives no finite epsilon"
    unit, units = UNITS[sampling.unit], f"{sampling.unit}s"
    neighbours = neighbours_of(sampling)
    if sampling.kind == "poisson":
        neighbours += f" (with the number of {units}, and so the rate, held fixed)"
    law = (
        f"Poisson sampling of {units} at rate {sampling.rate:.6g}"
        if sampling.kind == "poisson"
        else f"shuffled batches of {sampling.expected_batch} {units}, without amplification by sampling"
    )
    if sampling.periods:
        law = (
            f"each with Poisson sampling of the {units} of one of {len(sampling.periods)} periods, at rate "
            f"{sampling.rate:.6g} at most; a {sampling.unit} takes part in the steps of its own period alone, "
            f"which the time in the {sampling.unit} decides"
        )
    released = dict.fromkeys(
        ("draws by Gumbel noise, which tell no more than " if release.drawn else "")
        + f"a Gaussian release of {event.what} with multiplier {event.noise_multiplier:.6g}"
        + (", " if event.period is None else " over the records of a period, ")
        for release, event in plan.releases.items()
        if event in ledger.events
    )
    before = "".join([*chosen(plan.before), *released])
    risky = plan.delta * sampling.users > 1.01
    caution = f", and δ above 1 / {units} allows that some are published outright" if risky else ""
    public = "; ".join(assumptions) or f"the number of {units} ({sampling.users})"
    covered, after, left_out, first = "this run", "", "", ""
    if earlier:
        days = dict.fromkeys((one.began or "")[:10] for one in (earlier[0], earlier[-1]))
        neighbours += ", in the data of all runs at once"
        covered = f"this run and of the {count_of(earlier)} that it goes on from ({' to '.join(days)}), together"
        after = f", after the events of these; this run alone has ε = {round_up(ledger.epsilon(plan.delta))}"
        public += f"; the days of all runs; of the earlier ones what they assumed, such as their numbers of {units}"
        left_out, first = "what the earlier runs do not cover, ", " of the first run"
    return (
        f"({round_up(epsilon)}, {round_up(plan.delta)})-differential privacy per {sampling.unit}, "
        f"where neighbouring data sets differ by {neighbours}, for the models in the checkpoints of {covered}: "
        f"{before}{steps} step{'s' * (steps != 1)} of Gaussian noise with multiplier {plan.sigma:.6g} on "
        f"per-{sampling.unit} gradients clipped to norm {clipping.max_norm:g} ({clipping.mode}){split}, "
        f"{law}{caution}{after}; assumed public: {public}; not covered: {unit.not_covered}, "
        f"{rounded}{left_out}"
        f"the weights that training{first} began from, the choice of hyper-parameters or of a checkpoint by such "
        "metrics, and errors that stop a run"
    )


def chosen(before: Sequence[Event]) -> list[str]:
    """Describe the private choice of a catalogue, if there was one."""
    if not before:
        return []
    counts, alone = before
    return [
        f"a choice of the {counts.what} by the users of each item, counted with Gaussian noise of multiplier "
        f"{counts.noise_multiplier:.6g}, above a threshold that lets items of one user alone pass with probability "
        f"{round_up(alone.delta)}, "
    ]
