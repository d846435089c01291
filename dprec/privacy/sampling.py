"""The law by which users enter batches, as the accounting sees it: made from the sampler itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dprec.errors import UserError
from dprec.privacy.ledger import Event


class Sampler(Protocol):
    """A batch sampler that knows its own law."""

    kind: str  # "poisson" or "shuffle"
    users: int
    expected_batch: int
    rate: float
    seeded: bool
    unit: str  # what a "user" is: "user" or "record"


@dataclass(frozen=True)
class Sampling:
    """What a sampler does to one user over a run.

    Poisson: the user is in every step with probability `rate`, and every step is an event amplified by it.
    Shuffle: the user is in at most one step of each pass, and every pass is one event without amplification.
    """

    kind: str
    users: int
    expected_batch: int
    rate: float
    seeded: bool
    unit: str = "user"

    @classmethod
    def of(cls, sampler: Any) -> Sampling:
        """Read the law off the sampler; refuse one that does not state it."""
        kind = getattr(sampler, "kind", None)
        if kind not in ("poisson", "shuffle") or getattr(sampler, "unit", None) not in ("user", "record"):
            raise UserError(
                f"training batches come from {type(sampler).__name__}, whose sampling cannot be accounted for: "
                "use DataLoader(batch_sampler=dprec.data.PoissonBatches(…))"
            )
        return cls(kind, sampler.users, sampler.expected_batch, sampler.rate, sampler.seeded, sampler.unit)

    @property
    def steps_per_event(self) -> int:
        return 1 if self.kind == "poisson" else max(1, self.users // self.expected_batch)

    def event(self, noise_multiplier: float) -> Event:
        if self.kind == "poisson":
            return Event("poisson_gaussian", noise_multiplier, self.rate)
        return Event("gaussian", noise_multiplier)

    def events(self, steps: int, start: int = 0) -> int:
        """Return how many events that many steps are, taken from step `start` on by a process of their own.

        A shuffled pass that is taken up in its middle is shuffled anew: its rest is an event more.
        """
        if steps <= 0:
            return 0
        rest = -start % self.steps_per_event
        return (rest > 0) + -(-max(0, steps - rest) // self.steps_per_event)

    def steps_of(self, events: int, start: int = 0) -> int:
        """Return how many steps that many events pay for from step `start` on."""
        rest = -start % self.steps_per_event
        return rest + (events - 1) * self.steps_per_event if rest and events else events * self.steps_per_event

    def settings(self) -> dict[str, Any]:
        """JSON-able: what must not change while a ledger goes on."""
        named = {"sampling": self.kind, "users": self.users, "batch_size": self.expected_batch}
        return named | {"sampling_seeded": self.seeded, "unit": self.unit}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Sampling:
        users, batch = settings["users"], settings["batch_size"]
        return cls(settings["sampling"], users, batch, batch / users, settings["sampling_seeded"], settings["unit"])
