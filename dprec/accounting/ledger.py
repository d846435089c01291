"""The ledger of a run: every use of private data is an event in it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from dprec.accounting import composition as accounting
from dprec.errors import UserError

KINDS_OF_OPACUS = ("poisson_gaussian", "gaussian")
KINDS = (*KINDS_OF_OPACUS, "subset_gaussian", "bounded")


@dataclass(frozen=True)
class Event:
    """One use of private data through noise, in units of its sensitivity to one person.

    `poisson_gaussian`: every person takes part with probability `rate`, independently of the others; neighbours
    differ by one person added or removed.
    `subset_gaussian`: a batch of a fixed size, a share `rate` of all, every such batch as likely as any other;
    neighbours differ by one person replaced, and the sensitivity is to that.
    `gaussian`: everyone may take part; no amplification (one-shot releases, fixed-size batches). Neighbours are those
    for which the sensitivity holds.
    `bounded`: any mechanism that is (1 / noise multiplier, `delta`)-differentially private by itself, such as Laplace
    noise of that multiple of the ℓ1-sensitivity, whose δ is 0.
    A noise multiplier of 0 is an event too: it makes ε infinite.

    With a `period`, only data of that period can take part; all data belongs to exactly one period.
    """

    kind: str
    noise_multiplier: float
    rate: float = 1.0
    what: str = "training"
    delta: float = 0.0
    period: int | None = None

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

    If the data has periods, neighbours differ in only one of them. In all other periods they are equal, and steps there
    use equal data, even if they depend on earlier results. So ε is the largest over the periods, each with its own
    events and those without a period.

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

    @property
    def events(self) -> Mapping[Event, int]:
        """How often each event happened, in the order of first appearance."""
        return MappingProxyType(self._counts)

    @property
    def uses(self) -> accounting.Uses:
        """Counts by noise multiplier and sampling rate, over events of any name and period."""
        return _uses(self._counts, *KINDS_OF_OPACUS)

    def record(self, event: Event, count: int = 1) -> None:
        """Adds `count` uses of `event`; equal events are merged."""
        if count < 0:
            raise ValueError(f"count {count}: an event cannot be taken back")
        if count:
            _check_neighbours([*self._counts, event])
            self._counts[event] += count

    def after(self, event: Event, count: int) -> Ledger:
        """Return a new ledger with `count` more uses of `event`; this one does not change."""
        return self.after_all({event: count})

    def after_all(self, events: Mapping[Event, int]) -> Ledger:
        """Return a new ledger with more uses of several events."""
        ledger = Ledger(self._counts)
        for event, count in events.items():
            ledger.record(event, count)
        return ledger

    def epsilon(self, delta: float, resolution: float = 1.0) -> float:
        """Return ε at this δ of all recorded events, never below the truth: 0 for none, ∞ without noise.

        Final figures take about 0.2 s. With `resolution=composition.COARSE_GRID` it is several times faster and,
        still an upper bound, less than 1e-3 higher in common settings. Results are cached.
        """
        parts = [_hashable(events) for events in self._by_period()]
        if len(parts) == 1:
            return _epsilon(*parts[0], delta, resolution)
        largest = 0.0  # a period that a fast bound shows to be smaller is not composed
        for part in sorted(parts, key=lambda part: -_renyi_epsilon(*part, delta)):
            if _renyi_epsilon(*part, delta) > largest:
                largest = max(largest, _epsilon(*part, delta, resolution))
        return largest

    def renyi_epsilon(self, delta: float) -> float:
        """Return a looser upper bound on `epsilon` that takes milliseconds, for a first guess."""
        return max(_renyi_epsilon(*_hashable(events), delta) for events in self._by_period())

    def divergences(self) -> tuple[list[int], np.ndarray]:
        """Return orders, and an upper bound on the Rényi divergence of all recorded events at each."""
        found = []
        for events in self._by_period():
            uses, subset, bounded = _hashable(events)
            if bounded:
                what = next(event.what for event in events if event.kind == "bounded")
                raise UserError(f"{what} has no Gaussian noise, so its Rényi divergences are not known: leave it out")
            found.append(accounting.divergences(dict(uses), dict(subset)))
        return found[0][0], np.max([values for _, values in found], axis=0)

    @classmethod
    def from_opacus(cls, history: Iterable[tuple[float, float, int]]) -> Ledger:
        """Return the ledger of an Opacus accountant's `history`: noise multiplier, sampling rate and steps.

        >>> round(Ledger.from_opacus([(3.293, 1024 / 6040, 590)]).epsilon(delta=1 / 6040), 3)
        4.998
        """
        ledger = cls()
        for noise_multiplier, rate, steps in history:
            ledger.record(Event("poisson_gaussian", noise_multiplier, rate), steps)
        return ledger

    def opacus_history(self) -> list[tuple[float, float, int]]:
        """Return the events as the `history` of an Opacus accountant; those of periods all together."""
        if (other := next((event for event in self._counts if event.kind not in KINDS_OF_OPACUS), None)) is not None:
            raise UserError(f"Opacus has no event like {other.what} ({other.kind}): compose it with dprec")
        return [(noise_multiplier, rate, count) for (noise_multiplier, rate), count in self.uses.items()]

    def _by_period(self) -> list[Mapping[Event, int]]:
        """Return, for each period, the events in which its data may take part."""
        periods = {event.period for event in self._counts} - {None}
        return [
            {event: count for event, count in self._counts.items() if event.period in (None, period)}
            for period in periods
        ] or [self._counts]

    def state_dict(self) -> dict[str, Any]:
        """JSON-able: the events with their counts."""
        return {"events": [{**asdict(event), "count": count} for event, count in self._counts.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all events by those of a `state_dict`."""
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


def _check_neighbours(events: Iterable[Event]) -> None:
    if {"poisson_gaussian", "subset_gaussian"} <= {event.kind for event in events}:
        raise UserError(
            "Poisson sampling and batches of a fixed size protect against different neighbours and cannot share a "
            "ledger: use one of them"
        )


_Uses = tuple[tuple[tuple[float, float], int], ...]
_Bounded = tuple[tuple[float, float, int], ...]  # noise multiplier, δ, count


def _uses(events: Mapping[Event, int], *kinds: str) -> accounting.Uses:
    uses: Counter[tuple[float, float]] = Counter()
    for event, count in events.items():
        if event.kind in kinds:
            uses[event.noise_multiplier, event.rate] += count
    return uses


def _hashable(events: Mapping[Event, int]) -> tuple[_Uses, _Uses, _Bounded]:
    """Return events to compose (sampled person by person, and in batches of a fixed size), and bounded ones."""
    bounded = tuple((e.noise_multiplier, e.delta, count) for e, count in events.items() if e.kind == "bounded")
    people, subsets = _uses(events, *KINDS_OF_OPACUS), _uses(events, "subset_gaussian")
    return tuple(people.items()), tuple(subsets.items()), bounded


@lru_cache(maxsize=4096)  # a finished period, or one equal to another, is not composed again
def _epsilon(uses: _Uses, subset: _Uses, bounded: _Bounded, delta: float, resolution: float) -> float:
    added, rest = _added(bounded, delta)
    return added + accounting.epsilon(dict(uses), rest, resolution, dict(subset))


@lru_cache(maxsize=4096)
def _renyi_epsilon(uses: _Uses, subset: _Uses, bounded: _Bounded, delta: float) -> float:
    added, rest = _added(bounded, delta)
    return added + accounting.renyi_epsilon(dict(uses), rest, dict(subset))


def _added(bounded: _Bounded, delta: float) -> tuple[float, float]:
    """Return the sum of the bounded events' ε (∞ if their δ add up to more than `delta`), and the rest of `delta`."""
    rest = delta - math.fsum(count * own for _, own, count in bounded)
    if rest < 0 or any(multiplier == 0 for multiplier, _, _ in bounded):
        return math.inf, max(rest, 0.0)
    return math.fsum(count / multiplier for multiplier, _, count in bounded), rest


def round_up(promise: float) -> str:
    """Return four digits, rounded up: a guarantee must not be rounded down.

    >>> round_up(7.99912), round_up(1 / 6047)
    ('8', '0.0001654')
    """
    if promise == 0 or math.isinf(promise):
        return "0" if promise == 0 else "∞"
    unit = 10.0 ** (math.floor(math.log10(promise)) - 3)
    return f"{math.ceil(promise / unit - 1e-9) * unit:.4g}"
