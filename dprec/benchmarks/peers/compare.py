"""Systems side by side on one shape; a system that clips wrongly or cannot run has the reason in place of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from dprec.benchmarks.common.measure import against, race
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.peers.architectures import ARCHITECTURES
from dprec.benchmarks.peers.checks import clip_error
from dprec.benchmarks.peers.memory import MB, Job, MemoryMeter, largest_batch
from dprec.benchmarks.peers.shapes import Shape
from dprec.benchmarks.peers.systems import CannotRun, System

GB16 = 16 * 1024.0  # MB
COLUMNS = {
    "system": "system",
    "dim": "d",
    "ms_per_step": "ms/step",
    "ratio": "ratio",
    "ratio_spread": "middle half",
    "peak_mb": "peak MB",
    "max_batch_16gb": "in 16 GB",
}


@dataclass(frozen=True)
class Comparison:
    """Trains `architecture` on `shape` with each of `systems`; times are relative to those of the system `base`."""

    architecture: str
    shape: Shape
    systems: Mapping[str, type[System]]
    base: str
    width: Callable[[type[System]], int]
    rounds: int
    turn: float  # seconds
    at_once: tuple[int, int] | None = None  # two batches; their memory gives the largest possible one

    def rows(self, meter: MemoryMeter, say: Callable[[str], None]) -> list[Row]:
        """Measure, and return a row for each system."""
        rows = {name: self.row(kind) for name, kind in self.systems.items()}
        steps: dict[str, Callable[[], None]] = {}
        batch = self.shape.micro_batches()
        for name, row in rows.items():
            say(f"{self.shape.name}: checking {name}")
            try:
                system = self._ready(name, row)
                say(f"{self.shape.name}: memory of {name}")
                self._measure_memory(name, row, meter)
                steps[name] = partial(system.step, batch)
            except CannotRun as reason:
                row["why_not"] = str(reason)
            except Exception as error:  # a peer's failure is its row, not the end of the benchmark
                if name.startswith("dprec"):
                    raise
                row["why_not"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
        seconds = race(steps, self.rounds, self.turn, say=lambda what: say(f"{self.shape.name}: {what}"))
        for name, taken in seconds.items():
            rows[name]["ms_per_step"] = 1000 * sorted(taken)[len(taken) // 2]
            rows[name]["ratio"], rows[name]["ratio_spread"] = against(taken, seconds[self.base])
        return list(rows.values())

    def row(self, kind: type[System]) -> Row:
        """The facts about a system before any measurement."""
        dim = self.width(kind)
        with torch.device("meta"):
            plain = ARCHITECTURES[self.architecture].plain(self.shape.ids, self.shape.longest, dim, kind.tied)
        return {
            "shape": self.shape.name,
            "system": kind.name,
            "private": kind.private,
            "tied": kind.tied,
            "dim": dim,
            "items": self.shape.items,
            "batch": self.shape.users,
            "tokens": int(self.shape.lengths().sum()),
            "threads": torch.get_num_threads(),
            "ms_per_step": None,
            "ratio": None,
            "ratio_spread": None,
            "clip_error": None,
            "peak_mb": None,
            "parameters_mb": 4 * sum(p.numel() for p in plain.parameters()) / MB,
            "max_batch_16gb": None,
            "why_not": None,
        }

    def job(self, kind: type[System], at_once: int = 0) -> Job:
        return Job(kind.name, self.shape, self.width(kind), self.architecture, at_once)

    def _ready(self, name: str, row: Row) -> System:
        """Check the system's clipping, and return the system ready for timing."""
        kind, shape, dim = self.systems[name], self.shape, row["dim"]
        if kind.private:
            few = shape.check_batch()
            row["clip_error"] = clip_error(kind, shape.ids, shape.longest, few, dim, self.architecture)
        return kind(shape.ids, shape.longest, shape.users, dim, architecture=self.architecture)

    def _measure_memory(self, name: str, row: Row, meter: MemoryMeter) -> None:
        def peak(at_once: int) -> float | None:
            found, why_not = meter.peak_mb(self.job(self.systems[name], at_once))
            if why_not is not None:
                raise CannotRun(why_not)
            return found

        row["peak_mb"] = peak(0)
        if self.at_once is not None:
            (few, least), (many, most) = ((users, peak(users)) for users in self.at_once)
            if least is not None and most is not None:
                row["max_batch_16gb"] = largest_batch(
                    GB16 - row["parameters_mb"], self.shape.user_bytes / MB, (few, least), (many, most)
                )
