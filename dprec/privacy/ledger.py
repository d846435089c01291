"""What a run has spent: every look at private data is an event in one ledger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from dprec.errors import UserError
from dprec.privacy import accounting

KINDS = ("poisson_gaussian", "subset_gaussian", "gaussian", "bounded")


@dataclass(frozen=True)
class Event:
    """One use of private data through noise, in units of its sensitivity to one person.

    `poisson_gaussian`: every person takes part with probability `rate`, independently of the others; neighbours
    differ by one person added or removed.
    `subset_gaussian`: a batch of a fixed size, a share `rate` of all, every such batch as likely as any other;
    neighbours differ by one person replaced, and the sensitivity is to that.
    `gaussian`: everybody may take part; no amplification (one-shot releases, fixed-size batches). Neighbours are
    those the sensitivity is to.
    `bounded`: anything that is (1 / noise multiplier, `delta`)-differentially private by itself, such as Laplace
    noise of that multiple of the ℓ1-sensitivity, whose δ is 0.
    A noise multiplier of 0 is an event too: it makes ε infinite.
    """

    kind: str
    noise_multiplier: float
    rate: float = 1.0
    what: str = "training"
    delta: float = 0.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"unknown kind of privacy event '{self.kind}': use one of {', '.join(KINDS)}")
        if not 0 <= self.noise_multiplier < math.inf:
            raise UserError(f"{self.what}: the noise multiplier is {self.noise_multiplier}, give 0 or more")
        if not 0 < self.rate <= 1:
            raise UserError(f"{self.what}: the sampling rate is {self.rate}, give more than 0 and at most 1")
        if self.kind in ("gaussian", "bounded") and self.rate != 1:
            raise UserError(f"{self.what}: a {self.kind} event has no sampling rate, use kind poisson_gaussian")
        if not 0 <= self.delta < 1 or (self.delta and self.kind != "bounded"):
            raise UserError(f"{self.what}: the event's own delta is {self.delta}, give it to kind bounded, below 1")


class Ledger:
    """Counts events and composes them into one ε, by privacy loss distributions.

    All events are about the same neighbours: Poisson sampling (one person more or less) and batches of a fixed
    size (one person replaced) do not mix.

    >>> ledger = Ledger()
    >>> ledger.record(Event("gaussian", 20.0, what="item frequencies"))
    >>> ledger.record(Event("poisson_gaussian", 3.293, rate=1024 / 6040), count=590)
    >>> round(ledger.epsilon(delta=1 / 6040), 3)
    5.003
    """

    def __init__(self, events: Mapping[Event, int] | None = None) -> None:
        self._counts: Counter[Event] = Counter(events or {})
        _check_neighbours(self._counts)
        self._known: dict[tuple[float, float], float] = {}  # (delta, resolution) -> ε of what is recorded

    @property
    def events(self) -> Mapping[Event, int]:
        """How often each event happened, in the order of first appearance."""
        return MappingProxyType(self._counts)

    @property
    def uses(self) -> accounting.Uses:
        """What composes: counts by noise multiplier and sampling rate, whatever the events are called."""
        return self._uses("poisson_gaussian", "gaussian")

    @property
    def subset_uses(self) -> accounting.Uses:
        """The same, of batches of a fixed size."""
        return self._uses("subset_gaussian")

    def _uses(self, *kinds: str) -> accounting.Uses:
        uses: Counter[tuple[float, float]] = Counter()
        for event, count in self._counts.items():
            if event.kind in kinds:
                uses[event.noise_multiplier, event.rate] += count
        return uses

    def record(self, event: Event, count: int = 1) -> None:
        """Adds `count` uses of `event`; equal events are merged."""
        if count < 0:
            raise ValueError(f"count {count}: an event cannot be taken back")
        if count:
            _check_neighbours([*self._counts, event])
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
            added, rest = self._bounded(delta)
            noisy = accounting.epsilon(self.uses, rest, resolution, self.subset_uses)
            self._known[delta, resolution] = added + noisy
        return self._known[delta, resolution]

    def renyi_epsilon(self, delta: float) -> float:
        """An upper bound on `epsilon` that takes milliseconds and is looser: it says where to look."""
        added, rest = self._bounded(delta)
        return added + accounting.renyi_epsilon(self.uses, rest, self.subset_uses)

    def _bounded(self, delta: float) -> tuple[float, float]:
        """The sum of the bounded events' ε, ∞ if their δ add up to more than `delta`, and what they leave of it."""
        bounded = [(event, count) for event, count in self._counts.items() if event.kind == "bounded"]
        rest = delta - math.fsum(count * event.delta for event, count in bounded)
        if rest < 0 or any(event.noise_multiplier == 0 for event, _ in bounded):
            return math.inf, max(rest, 0.0)
        return math.fsum(count / event.noise_multiplier for event, count in bounded), rest

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
        _check_neighbours(counts)
        self._counts = counts
        self._known.clear()


def _check_neighbours(events: Iterable[Event]) -> None:
    if {"poisson_gaussian", "subset_gaussian"} <= {event.kind for event in events}:
        raise UserError(
            "Poisson sampling and batches of a fixed size protect against different neighbours and cannot share a "
            "ledger: use one of them"
        )
