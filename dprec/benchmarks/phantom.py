"""The cost of clipping per user: DPFormer at the shapes of MovieLens-1M and Amazon Games, against its peers.

First each system's step is checked, on a few users, against one plain backward pass for each user. A wrong system gets
no number. Times are taken side by side in this process, on one thread or more; peak memory in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Group
from torch import Tensor

from dprec.benchmarks import timing
from dprec.benchmarks.peers import SYSTEMS
from dprec.benchmarks.systems import CannotRun, DprecPlain, PlainTransformer, Shape, System
from dprec.benchmarks.timing import MB, Row, against, peak_mb, race
from dprec.data import SequenceBatch
from dprec.reporting import figure
from dprec_kernels.processor import of_threads

OPTIONS = ("threads",)  # of the command line
BASE = DprecPlain.name
ROUNDS = 9
TOLERANCE = 1e-4  # of the clipped sum's norm; float32 leaves about 1e-6

# Median, spread and bounds give the quantiles of the training histories in these two data sets (cut to 200 and 50).
SHAPES = (
    Shape("MovieLens-1M", 3_416, users=128, tokens=4_096, median=94, spread=1.04, shortest=16, longest=200),
    Shape("Amazon Games", 23_715, users=256, tokens=512, median=5, spread=0.85, shortest=2, longest=50),
)
SMALL = (
    Shape("MovieLens-1M", 100, users=8, tokens=64, median=9, spread=1.0, shortest=2, longest=20),
    Shape("Amazon Games", 500, users=12, tokens=24, median=3, spread=0.8, shortest=1, longest=6),
)
COLUMNS = {
    "system": "system",
    "dim": "d",
    "ms_per_step": "ms/step",
    "ratio": "ratio",
    "ratio_spread": "middle half",
    "peak_mb": "peak MB",
}


def run(quick: bool, say: Callable[[str], None], threads: int = 1) -> Iterator[Row]:
    """Yield a row for each shape and system."""
    with of_threads(threads):
        for shape in SMALL if quick else SHAPES:
            yield from compared(shape, quick, say)


def compared(shape: Shape, quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Measure all systems on a shape; one that clips wrongly or cannot run has the reason in place of numbers."""
    rows = {name: facts(kind, shape, quick) for name, kind in SYSTEMS.items()}
    steps: dict[str, Callable[[], object]] = {}
    for name, row in rows.items():
        kind = SYSTEMS[name]
        try:
            say(f"{shape.name}: checking {name}")
            if kind.private:
                row["clip_error"] = clip_error(kind, shape, row["dim"])
            system = kind(shape.ids, shape.longest, shape.users, row["dim"])
            say(f"{shape.name}: memory of {name}")
            row["peak_mb"], row["why_not"] = peak_mb(kind, shape, row["dim"])
            if row["why_not"] is None:
                steps[name] = partial(system.step, shape.micro_batches())
        except CannotRun as reason:
            row["why_not"] = str(reason)
        except Exception as error:  # a peer's failure is its row, not the end of the benchmark
            if name.startswith("dprec"):
                raise
            row["why_not"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
    seconds = race(steps, 2 if quick else ROUNDS, say=lambda what: say(f"{shape.name}: {what}"))
    for name, taken in seconds.items():
        rows[name]["ms_per_step"] = 1000 * sorted(taken)[len(taken) // 2]
        rows[name]["ratio"], rows[name]["ratio_spread"] = against(taken, seconds[BASE])
    return list(rows.values())


def facts(kind: type[System], shape: Shape, quick: bool) -> Row:
    """Return what is known of a system before any measurement.

    As in the paper, two tables of half the width hold as many numbers as the tied table.
    """
    dim = (8 if quick else 64) // (1 if kind.tied else 2)
    with torch.device("meta"):
        plain = PlainTransformer(shape.ids, shape.longest, dim, kind.tied)
    known = {"shape": shape.name, "system": kind.name, "private": kind.private, "tied": kind.tied, "dim": dim}
    sizes = {"items": shape.items, "batch": shape.users, "tokens": int(shape.lengths().sum())}
    unknown = ("ms_per_step", "ratio", "ratio_spread", "clip_error", "peak_mb", "why_not")
    weights = 4 * sum(p.numel() for p in plain.parameters()) / MB
    return {**known, **sizes, "threads": torch.get_num_threads(), "parameters_mb": weights, **dict.fromkeys(unknown)}


def clip_error(kind: type[System], shape: Shape, dim: int) -> float:
    """Return the error of a system's clipped sum of a few users; raise `CannotRun` if it is too large."""
    batch = shape.check_batch()
    system = kind(shape.ids, shape.longest, len(batch), dim, noise_multiplier=0.0)
    expected = clipped_sum(system, batch)
    middle = len(batch) // 2  # two micro-batches, because a step has several
    system.step([batch.select(range(middle)), batch.select(range(middle, len(batch)))])
    found, wrong = system.gradients(), 0.0
    for name, exact in expected.items():
        off = exact if found.get(name) is None else found[name].double() * len(batch) - exact
        wrong += float(off.square().sum())
    error = (wrong / sum(float(exact.square().sum()) for exact in expected.values())) ** 0.5
    if not error <= TOLERANCE:  # also if it is NaN
        raise CannotRun(f"clips wrongly: its clipped sum is off by {error:.2%}, so no number is given")
    return error


def clipped_sum(system: System, batch: SequenceBatch) -> dict[str, Tensor]:
    """Σ_u scale(‖g_u‖) g_u in float64, by one plain backward pass for each user."""
    twin = system.twin().double()
    parameters = dict(twin.named_parameters())
    total = {name: torch.zeros_like(p, requires_grad=False) for name, p in parameters.items()}
    for user in range(len(batch)):
        one = batch.select([user])
        gradients = torch.autograd.grad(twin(one.history, one.targets).sum(), list(parameters.values()))
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        for name, gradient in zip(parameters, gradients, strict=True):
            total[name] += system.scale(norm) * gradient
    return total


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison, and why a system has no number."""
    line = f"ratio: time against dprec non-private. Threads: {rows[0]['threads']}. {timing.machine()}"
    missing = [f"{row['shape']}, {row['system']}: {row['why_not']}" for row in rows if row["why_not"]]
    return Group(timing.table(rows, COLUMNS, section="shape"), line, *missing)


def picture(rows: Sequence[Row], file: Path) -> None:
    """Draw the time of a step of each system at each shape, beside that of dprec without privacy."""
    timed = [row for row in rows if row["ratio"] is not None]
    names = [f"{row['shape']}: {row['system']}" for row in timed]
    figure.bars(names, [row["ratio"] for row in timed], "time of a step, dprec non-private = 1", file, beside=1.0)
