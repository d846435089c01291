"""DLRM on large tables: DP-SGD with dense noise, EANA and LazyDP, each beside plain SGD on the same tables.

The cost of a step is that of a whole step, and that of its embedding part alone: the same tables under a model that
only adds up what it looks up. What is measured is a run that has gone on for long (`dprec.benchmarks.table_steps`): no
batch comes twice, and rows wait for as long as such batches let them.

Each row is measured in a process of its own, which gives its memory back. Where the system kills it, its row says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.console import Group

from dprec.benchmarks import timing
from dprec.benchmarks.table_steps import MLPERF, NETWORKS, SYSTEMS, LookUps, Network, Pooled, Step
from dprec.benchmarks.timing import Row, against, race
from dprec.errors import UserError
from dprec.reporting import figure
from dprec_kernels.processor import one_thread

SIZES = (0.4, 4.0, 8.0)  # GB of tables
BATCHES = (1024, 2048, 4096)
POOLINGS = (1, 10, 20, 30)
ACCESS = {"even": 1.0, "low skew": 0.36, "medium skew": 0.1, "high skew": 0.006}  # the rows of nine look-ups in ten
ROUNDS, SLOW_ROUNDS = 5, 3
SWEEPS = ("sizes", "batches", "poolings", "access", "networks")
OPTIONS = ("sweeps",)  # of the command line
COLUMNS = {
    "system": "system",
    "ms_per_step": "ms/step",
    "ratio_to_sgd": "times SGD",
    "ratio_spread": "middle half",
    "embedding_ms": "embedding ms",
}


@dataclass(frozen=True)
class Case:
    """The sizes of tables and of the batches that read them."""

    gigabytes: float
    batch: int = 2048
    pooling: int = 1
    access: str = "even"
    network: str = MLPERF
    quick: bool = False

    @property
    def shape(self) -> Network:
        return NETWORKS[self.network]

    @property
    def look_ups(self) -> LookUps:
        ids = self.shape.ids(self.gigabytes) - 1
        return LookUps(self.batch, self.shape.tables, ids, self.pooling, ACCESS[self.access])

    @property
    def row(self) -> Row:
        sizes = {"table_gb": self.gigabytes, "rows": self.shape.tables * self.shape.ids(self.gigabytes)}
        return {**sizes, "batch": self.batch, "pooling": self.pooling, "access": self.access, "network": self.network}


def cases(sweeps: Sequence[str], quick: bool) -> list[Case]:
    """Return the cases of some sweeps, each once.

    >>> [case.pooling for case in cases(["poolings"], quick=False)]
    [1, 10, 20, 30]
    """
    base = Case(0.002, batch=64, quick=True) if quick else Case(SIZES[0])
    large = base if quick else replace(base, gigabytes=4.0)
    swept = {
        "sizes": [replace(base, gigabytes=size) for size in ((0.002, 0.004) if quick else SIZES)],
        "batches": [replace(base, batch=batch) for batch in ((64,) if quick else BATCHES)],
        "poolings": [replace(base, pooling=pooling) for pooling in ((1, 10) if quick else POOLINGS)],
        "access": [replace(base, access=access) for access in (["high skew"] if quick else ACCESS)],
        "networks": [replace(large, pooling=shape.pooling, network=name) for name, shape in NETWORKS.items()],
    }
    return list(dict.fromkeys(case for sweep in sweeps for case in swept[sweep]))


def run(quick: bool, say: Callable[[str], None], sweeps: str | None = None) -> Iterator[Row]:
    """Yield a row for each case of the sweeps and each system but SGD, as it is measured."""
    wanted = list(SWEEPS) if sweeps is None else sweeps.split(",")
    if unknown := [sweep for sweep in wanted if sweep not in SWEEPS]:
        raise UserError(f"--sweeps has {unknown[0]!r}: give some of {','.join(SWEEPS)}")
    for case in cases(wanted, quick):
        for system in SYSTEMS:
            if system == "SGD" or (system == "DP-SGD, unfused" and case.gigabytes > SIZES[0]):
                continue  # whose gradient takes as much memory again
            say(f"{case.gigabytes:g} GB, {case.batch:,} records, {case.pooling} look-ups, {case.access}: {system}")
            if quick:
                yield measured(case, system)
                continue
            try:
                with ProcessPoolExecutor(1, get_context("spawn")) as own:
                    row = own.submit(measured, case, system).result()
            except BrokenProcessPool:
                why_not = "its process was killed, most likely for its memory"
                row = {**case.row, **dict.fromkeys(COLUMNS), "system": system, "why_not": why_not}
            yield row


@one_thread()
def measured(case: Case, system: str) -> Row:
    """Measure a system and SGD in turns, over the same tables."""
    model = case.shape.model(case.shape.ids(case.gigabytes), case.quick)
    slow = system.startswith("DP-SGD")  # a sweep over the tables leaves the caches to nobody
    rounds, turn = (1, 1) if case.quick else (SLOW_ROUNDS, 1) if slow else (ROUNDS, 2)
    steps = {name: Step(name, model, case.look_ups) for name in ("SGD", system)}
    whole = race(steps, rounds, turn)
    alone = Pooled(model.tables, [case.look_ups.ids] * case.shape.tables)
    part = Step(system, alone, case.look_ups)
    embedding = race({system: part}, rounds, turn)[system]
    ratio, spread = against(whole[system], whole["SGD"])
    return {
        **case.row,
        "system": system,
        "rounds": len(whole[system]),
        "ms_per_step": 1e3 * float(np.median(whole[system])),
        "ratio_to_sgd": ratio,
        "ratio_spread": spread,
        "embedding_ms": 1e3 * float(np.median(embedding)),
        "why_not": None,
    }


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison and its summary."""
    case = "{network}, {table_gb:g} GB, {batch:,} records, {pooling} look-ups, {access}"
    named = [row | {"case": case.format(**row)} for row in rows]
    missing = [f"{row['case']}, {row['system']}: {row['why_not']}" for row in named if row["why_not"]]
    return Group(timing.table(named, COLUMNS, section="case"), timing.machine(), *missing)


def picture(rows: Sequence[Row], file: Path) -> None:
    """Draw the time of each case and system beside that of SGD."""
    case = "{system}: {network}, {table_gb:g} GB, {batch:,} x {pooling}, {access}"
    ratios = {case.format(**row): row["ratio_to_sgd"] for row in rows if row["ratio_to_sgd"] is not None}
    figure.bars(list(ratios), list(ratios.values()), "time of a step, SGD = 1", file, beside=1.0)
