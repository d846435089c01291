"""How users enter batches, for the accounting; read from the sampler itself."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate, pairwise
from typing import Any, Protocol

from dprec.accounting.ledger import Event
from dprec.errors import UserError


class Sampler(Protocol):
    """A batch sampler that states how it draws.

    A sampler that draws from one period of users after another also has `periods`, a sequence of (range, steps): the
    consecutive users of each, and how many steps draw from them.
    """

    kind: str  # "poisson" or "shuffle"
    users: int
    expected_batch: int
    unit: str  # what a "user" is: "user" or "record"
    keep_draws: bool  # whether draws are kept until `served` returns them

    @property
    def rate(self) -> float: ...

    @property
    def seeded(self) -> bool: ...

    def served(self) -> tuple[int, Sequence[int]] | None:
        """Return the next kept draw, each once and in order: the step and users of training's next batch."""


@dataclass(frozen=True)
class Period:
    """Consecutive users, from whom training draws for some steps before the next period."""

    first: int
    users: int
    steps: int

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.users)


@dataclass(frozen=True)
class Sampling:
    """How a sampler draws one user over a run.

    Poisson: the user is in every step with probability `rate`, and every step is an event amplified by it.
    Shuffle: the user is in at most one step of each pass, and every pass is one event without amplification.
    Periods (Poisson): a step draws only from the users of its period, at that period's rate; the first period follows
    the last one.
    """

    kind: str
    users: int
    expected_batch: int
    rate: float
    seeded: bool
    unit: str = "user"
    periods: tuple[Period, ...] = ()

    @classmethod
    def of(cls, sampler: Any) -> Sampling:
        """Read from the sampler how it draws; refuse one that does not state it."""
        kind = getattr(sampler, "kind", None)
        unit = getattr(sampler, "unit", None)
        if kind not in ("poisson", "shuffle") or unit is None:
            raise UserError(
                f"training batches come from {type(sampler).__name__}, whose sampling cannot be accounted for: "
                "use DataLoader(batch_sampler=dprec.data.PoissonBatches(…))"
            )
        if unit not in ("user", "record"):
            raise UserError(f"unit is {unit!r}: give user or record")
        given = tuple(getattr(sampler, "periods", ()))
        if given and kind != "poisson":
            raise UserError(f"the periods of {type(sampler).__name__} are accounted for as Poisson sampling: draw so")
        if given and not hasattr(sampler, "served"):
            raise UserError(
                f"{type(sampler).__name__} has periods and does not say which step a batch was drawn for: give it "
                "served(), as dprec.data.draws.poisson.PeriodBatches has it"
            )
        _refuse_shared([part for part, _ in given])
        periods = tuple(Period(part.start, len(part), steps) for part, steps in given)
        return cls(kind, sampler.users, sampler.expected_batch, sampler.rate, sampler.seeded, sampler.unit, periods)

    def refuse_changed(self, sampler: Any) -> None:
        """Refuse a sampler that no longer draws as the accounting assumes."""
        now = Sampling.of(sampler)
        if now != self:
            name = next(each.name for each in fields(self) if getattr(now, each.name) != getattr(self, each.name))
            raise UserError(
                f"{type(sampler).__name__}.{name} was {getattr(self, name)} when the run was planned and is now "
                f"{getattr(now, name)}: leave the sampler unchanged, or start a new run"
            )

    def period_of(self, step: int) -> int | None:
        """Return the number of the period that a step draws from."""
        if not self.periods:
            return None
        return bisect_right(self._ends, step % self._ends[-1])

    @property
    def _ends(self) -> list[int]:
        return [*accumulate(period.steps for period in self.periods)]

    @property
    def steps_per_event(self) -> int:
        return 1 if self.kind == "poisson" else max(1, self.users // self.expected_batch)

    def event(self, noise_multiplier: float, step: int = 0) -> Event:
        """The event that the ledger records for a step."""
        if (number := self.period_of(step)) is not None:
            rate = self.expected_batch / self.periods[number].users
            return Event("poisson_gaussian", noise_multiplier, rate, period=number)
        if self.kind == "poisson":
            return Event("poisson_gaussian", noise_multiplier, self.rate)
        return Event("gaussian", noise_multiplier)

    def spending(self, noise_multiplier: float, steps: int, start: int = 0) -> dict[Event, int]:
        """Return the events of that many steps from step `start` on, if one process takes them all.

        >>> run = Sampling("poisson", 30, 5, 0.5, False, "record", (Period(0, 10, 4), Period(10, 20, 8)))
        >>> [(event.period, event.rate, count) for event, count in run.spending(1.0, steps=11, start=2).items()]
        [(0, 0.5, 3), (1, 0.25, 8)]
        """
        if not self.periods:
            return {self.event(noise_multiplier): self.events(steps, start)}
        found, first = {}, 0
        for period in self.periods:
            count = self._of(period, first, start + steps) - self._of(period, first, start)
            if count > 0:
                found[self.event(noise_multiplier, first)] = count
            first += period.steps
        return found

    def _of(self, period: Period, first: int, before: int) -> int:
        """How many of the steps before a step draw from a period whose first step is `first`."""
        passes, rest = divmod(before, self._ends[-1])
        return passes * period.steps + min(max(rest - first, 0), period.steps)

    def events(self, steps: int, start: int = 0) -> int:
        """Return how many events that many steps from step `start` on are, if one process takes them all.

        If a run resumes in the middle of a shuffled pass, the users are shuffled again: the rest is one more event.
        """
        if steps <= 0:
            return 0
        rest = -start % self.steps_per_event
        return (rest > 0) + -(-max(0, steps - rest) // self.steps_per_event)

    def settings(self) -> dict[str, Any]:
        """JSON-able: settings that must not change while a ledger continues."""
        named = {"sampling": self.kind, "users": self.users, "batch_size": self.expected_batch}
        named |= {"sampling_seeded": self.seeded, "unit": self.unit}
        # Only if there are any, so that a run of a version without periods can continue.
        return named | ({"periods": [[p.first, p.users, p.steps] for p in self.periods]} if self.periods else {})

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Sampling:
        users, batch = settings["users"], settings["batch_size"]
        periods = tuple(Period(*given) for given in settings.get("periods", ()))
        rate = batch / min([period.users for period in periods], default=users)
        seeded, unit = settings["sampling_seeded"], settings["unit"]
        return cls(settings["sampling"], users, batch, rate, seeded, unit, periods)


def _refuse_shared(periods: Sequence[range]) -> None:
    """Refuse periods that have a user in common: the costs of different periods are not added."""
    if any(part.step != 1 for part in periods):
        raise UserError("the users of a period are not consecutive: give ranges of step 1")
    ascending = sorted((part.start, part.stop, number) for number, part in enumerate(periods))
    for (_, stop, one), (start, _, other) in pairwise(ascending):
        if start < stop:
            raise UserError(
                f"periods {min(one, other)} and {max(one, other)} share users, who would take part in both while one "
                "is paid for: give periods that do not overlap"
            )
