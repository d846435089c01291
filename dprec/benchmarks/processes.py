"""The same private steps in one process and in two: how many users a second, and what the work and the exchange cost.

Runs take turns. Each is one of processes that are started for it, every process with one thread; gloo connects them.
All draw the same users, so the steps are the same. Both times, the clock's and the processors', are only true where
nothing else is at work: others that share the caches slow the processors down.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Group

from dprec.benchmarks.common import report
from dprec.benchmarks.common.measure import against
from dprec.benchmarks.common.report import Row
from dprec.data import Sequences
from dprec.distributed.ending import leave
from dprec.models import Transformer
from dprec.reporting import figure
from dprec.training.script import private
from dprec_kernels.threads import one_thread

PROCESSES = (1, 2)
WARM = 2  # steps of a run that do not count: the first allocates what the others find
COLUMNS = {
    "processes": "processes",
    "users_per_second": "users/s",
    "ms_per_step": "ms/step",
    "ratio": "users/s against one",
    "ratio_spread": "of the rounds",
    "cpu_ms_per_step": "CPU ms/step, busiest",
    "all_cpu_ms_per_step": "of all",
}


@dataclass(frozen=True)
class Size:
    users: int
    items: int
    length: int
    batch: int
    dim: int
    steps: int
    rounds: int


FULL = Size(users=6_040, items=3_416, length=50, batch=1_024, dim=64, steps=8, rounds=3)
TINY = Size(users=60, items=20, length=6, batch=12, dim=8, steps=2, rounds=1)


@dataclass(frozen=True)
class Taken:
    """A run's seconds by the clock, and of each process's processor."""

    clock: float
    cpu: list[float]


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each number of processes."""
    size = TINY if quick else FULL
    taken: dict[int, list[Taken]] = {processes: [] for processes in PROCESSES}
    for number in range(size.rounds):
        for processes in PROCESSES if number % 2 == 0 else PROCESSES[::-1]:
            say(f"round {number + 1} of {size.rounds}: {processes} processes")
            taken[processes].append(measured(size, processes))
    return [_row(size, processes, taken) for processes in PROCESSES]


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison, and what it is of."""
    some = rows[0]
    what = (
        f"A Transformer of width {some['dim']} on {some['items']:,} items, {some['batch']:,} users a step. Each "
        f"process has one thread. {report.machine()}"
    )
    return Group(report.table(rows, COLUMNS), what)


def picture(rows: Sequence[Row], file: Path) -> None:
    """Draw users a second by the number of processes."""
    names = [str(row["processes"]) for row in rows]
    figure.bars(names, [row["users_per_second"] for row in rows], "users a second, by the number of processes", file)


def measured(size: Size, processes: int) -> Taken:
    """Take the steps in so many new processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(  # type: ignore[no-untyped-call]
            _work, args=(processes, Path(folder), size), nprocs=processes, start_method="spawn"
        )
        each = [np.loadtxt(Path(folder) / str(number)) for number in range(processes)]
    return Taken(max(clock for clock, _ in each), [cpu for _, cpu in each])


def _work(number: int, processes: int, folder: Path, size: Size) -> None:
    """Take the steps of one process, and write its seconds."""
    warnings.simplefilter("ignore")
    with one_thread():
        dist.init_process_group("gloo", init_method=(folder / "meeting").as_uri(), rank=number, world_size=processes)
        try:
            seconds = _steps(size)
        finally:
            leave()
    np.savetxt(folder / str(number), seconds)


def _steps(size: Size) -> list[float]:
    """Return the seconds of the steps that count, by the clock and of this process's processor."""
    data = Sequences(
        "synthetic",
        synthetic_users=size.users,
        synthetic_items=size.items,
        min_events=0,
        max_length=size.length,
        batch_size=size.batch,
        sampling_seed=0,
    )
    data.setup()
    torch.manual_seed(0)
    model = Transformer(**data.sizes, dim=size.dim, dropout=0.0)
    training = private(
        model,
        torch.optim.Adam(model.parameters(), lr=0.01),
        data.train_dataloader(),
        noise_multiplier=1.0,
        steps=WARM + size.steps,
        verify=0.0,
    )
    begin = (0.0, 0.0)
    for batch in training:
        training.step(batch)
        if training.steps == WARM:
            begin = (time.perf_counter(), time.process_time())
    return [time.perf_counter() - begin[0], time.process_time() - begin[1]]


def _row(size: Size, processes: int, taken: dict[int, list[Taken]]) -> Row:
    mine, steps = taken[processes], size.steps
    ratio, spread = against([each.clock for each in taken[1]], [each.clock for each in mine])
    clock = float(np.median([each.clock for each in mine])) / steps
    return {
        "processes": processes,
        "users_per_second": size.batch / clock,
        "ms_per_step": 1e3 * clock,
        "ratio": ratio,
        "ratio_spread": spread,
        "cpu_ms_per_step": 1e3 * float(np.median([max(each.cpu) for each in mine])) / steps,
        "all_cpu_ms_per_step": 1e3 * float(np.median([sum(each.cpu) for each in mine])) / steps,
        "items": size.items,
        "batch": size.batch,
        "dim": size.dim,
    }
