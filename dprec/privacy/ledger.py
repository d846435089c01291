"""What a run has spent: every look at private data is an event in one ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from dprec.errors import UserError
from dprec.privacy import accounting

KINDS = ("poisson_gaussian", "gaussian")


@dataclass(frozen=True)
class Event:
    """One use of private data through Gaussian noise, in units of its sensitivity to one person.

    `poisson_gaussian`: every person takes part with probability `rate`, independently of the others.
    `gaussian`: everybody may take part; no amplification (one-shot releases, fixed-size batches).
    A noise multiplier of 0 is an event too: it makes ε infinite.
    """

    kind: str
    noise_multiplier: float
    rate: float = 1.0
    what: str = "training"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"unknown kind of privacy event '{self.kind}': use one of {', '.join(KINDS)}")
        if not 0 <= self.noise_multiplier < math.inf:
            raise UserError(f"{self.what}: the noise multiplier is {self.noise_multiplier}, give 0 or more")
        if not 0 < self.rate <= 1:
            raise UserError(f"{self.what}: the sampling rate is {self.rate}, give more than 0 and at most 1")
        if self.kind == "gaussian" and self.rate != 1:
            raise UserError(f"{self.what}: a gaussian event has no sampling rate, use kind poisson_gaussian")


class Ledger:
    """Counts events and composes them into one ε (add or remove one person, privacy loss distributions).

    >>> ledger = Ledger()
    >>> ledger.record(Event("gaussian", 20.0, what="item frequencies"))
    >>> ledger.record(Event("poisson_gaussian", 3.293, rate=1024 / 6040), count=590)
    >>> round(ledger.epsilon(delta=1 / 6040), 3)
    5.003
    """

    def __init__(self, events: Mapping[Event, int] | None = None) -> None:
        self._counts: Counter[Event] = Counter(events or {})
        self._known: dict[tuple[float, float], float] = {}  # (delta, resolution) -> ε of what is recorded

    @property
    def events(self) -> Mapping[Event, int]:
        """How often each event happened, in the order of first appearance."""
        return MappingProxyType(self._counts)

    @property
    def uses(self) -> accounting.Uses:
        """What composes: counts by noise multiplier and sampling rate, whatever the events are called."""
        uses: Counter[tuple[float, float]] = Counter()
        for event, count in self._counts.items():
            uses[event.noise_multiplier, event.rate] += count
        return uses

    def record(self, event: Event, count: int = 1) -> None:
        """Adds `count` uses of `event`; equal events are merged."""
        if count < 0:
            raise ValueError(f"count {count}: an event cannot be taken back")
        if count:
            self._counts[event] += count
            self._known.clear()

    def after(self, event: Event, count: int) -> Ledger:
        """What this ledger would be after `count` more uses of `event`; this one stays as it is."""
        ledger = Ledger(self._counts)
        ledger.record(event, count)
        return ledger

    def epsilon(self, delta: float, resolution: float = 1.0) -> float:
        """ε at this δ of everything recorded, never below the truth: 0 for nothing, ∞ without noise.

        Final figures take about 0.2 s. With `resolution=accounting.COARSE` it is several times faster and,
        still an upper bound, less than 1e-3 higher in common settings. Asking twice is free.
        """
        if (delta, resolution) not in self._known:
            self._known[delta, resolution] = accounting.epsilon(self.uses, delta, resolution)
        return self._known[delta, resolution]

    def state_dict(self) -> dict[str, Any]:
        """JSON-able: the events with their counts."""
        return {"events": [{**asdict(event), "count": count} for event, count in self._counts.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces what is recorded by what `state_dict` gave."""
        counts: Counter[Event] = Counter()
        try:
            for entry in state["events"]:
                fields = dict(entry)
                count = int(fields.pop("count"))
                if count < 1:
                    raise ValueError(f"an event {count} times")
                counts[Event(**fields)] += count
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"the privacy ledger cannot be read ({error}): use a checkpoint dprec wrote") from None
        self._counts = counts
        self._known.clear()
