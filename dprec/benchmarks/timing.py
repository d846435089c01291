"""Systems side by side: every round gives each a turn, so that whatever else the machine does hits all alike.

The rows come as a table on the screen and as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from dprec.benchmarks.systems import Shape, System
from dprec.errors import UserError
from dprec_kernels.products import library

Step = Callable[[], object]  # with a method `fetch`, if it gets ready in time that does not count


def race(
    steps: Mapping[str, Step], rounds: int, turn: int = 2, say: Callable[[str], None] = lambda _: None
) -> dict[str, list[float]]:
    """Return for each system the seconds of its fastest step in each round.

    A turn is two steps: the first finds the caches full of another system's data. Where steps take minutes, one says
    enough, and nothing is tried out before the first round either. The order within a round is drawn anew each time.
    """
    order = np.random.default_rng(0)
    names = list(steps)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for step in steps.values() if turn > 1 else ():
        _seconds(step)
    for number in range(rounds):
        for name in (names[place] for place in order.permutation(len(names))):
            say(f"round {number + 1} of {rounds}: {name}")
            seconds[name].append(min(_seconds(steps[name]) for _ in range(turn)))
    return seconds


def against(seconds: list[float], base: list[float]) -> tuple[float, list[float]]:
    """Return the median of the rounds' ratios and their interquartile range.

    >>> against([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    (2.0, [2.0, 2.5])
    """
    low, middle, high = np.quantile(np.array(seconds) / np.array(base), [0.25, 0.5, 0.75]).tolist()
    return middle, [low, high]


def _seconds(step: Step) -> float:
    if hasattr(step, "fetch"):
        step.fetch()
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    step()
    return clock() - begin


# Peak memory of a step, each in a separate process, forked from one that has imported everything and run nothing.
#
# The measure is the kernel's resident memory (VmHWM, reset before the step) minus that of the process after it made
# the model. It includes gradients, optimizer state, activations and workspaces of any library. The C library is told
# to return freed memory at once, so the peak is memory that was in use at the same time.


MB = 1 << 20
LIMIT = 16 << 30  # bytes; a system whose step takes more counts as one that cannot run
SECONDS = 180  # the longest time of two steps
SMALL = Shape("warm", items=20, users=2, tokens=8, median=3, spread=0.1, shortest=2, longest=4)


def peak_mb(kind: type[System], shape: Shape, dim: int) -> tuple[float | None, str | None]:
    """Return the peak of two steps in MB, or the reason why there is none; outside of Linux neither."""
    if sys.platform != "linux":
        return None, None
    context = get_context("forkserver")
    context.set_forkserver_preload(["dprec.benchmarks.peers", "opacus"])
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(sender, kind, shape, dim))
    with mock.patch.dict(os.environ, environment(GIVE_BACK), clear=True):  # of the server, which starts with the first
        child.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            return None, f"two steps take more than {SECONDS} s"
        answer: tuple[float | None, str | None] = receiver.recv()
        return answer
    except EOFError:
        child.join()
        return None, f"killed by signal {-(child.exitcode or 0)}"
    finally:
        child.kill()


def _answer(sender: Any, kind: type[System], shape: Shape, dim: int) -> None:
    import resource  # not on Windows

    limit = min(LIMIT, int(0.9 * read("/proc/meminfo", "MemAvailable")))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    torch.set_num_threads(1)
    try:
        sender.send((_peak(kind, shape, dim) / MB, None))
    except Exception as error:
        sender.send((None, f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]))


def _peak(kind: type[System], shape: Shape, dim: int) -> float:
    kind(SMALL.ids, SMALL.longest, SMALL.users, dim).step(SMALL.micro_batches())  # code and libraries
    system, batch = kind(shape.ids, shape.longest, shape.users, dim), shape.micro_batches()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM is what is resident now
    before = read("/proc/self/status", "VmRSS")
    for _ in range(2):  # the optimizer's state exists only from the second step on
        system.step(batch)
    return read("/proc/self/status", "VmHWM") - before


def read(file: str, key: str) -> int:
    """Return a number of bytes from a file of `Key: 123 kB` lines."""
    lines = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":")) * 1024


# On a small virtual machine a fresh page costs 13 µs, ten times the work of a step on it. These settings keep freed
# memory in the process, for every system. The C library reads them once, when the process starts.
KEEP = {"MALLOC_TOP_PAD_": str(1 << 26), "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0"}
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_TOP_PAD_": "0"}


def environment(memory: Mapping[str, str], threads: int = 1) -> dict[str, str]:
    """Return the environment of another process that imports what this one does; `memory` is all that its C library is
    told."""
    others = {key: value for key, value in os.environ.items() if not key.startswith("MALLOC_")}
    path = os.pathsep.join(filter(None, sys.path))
    return {**others, **memory, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}


def keep_memory() -> None:
    """Restart this process once, with an allocator that keeps freed memory, and one thread."""
    wanted = KEEP | {"OMP_NUM_THREADS": "1"}
    if sys.platform == "linux" and any(os.environ.get(key) != value for key, value in wanted.items()):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | wanted)


Row = dict[str, Any]


def machine() -> str:
    """Say how busy the machine is that the figures are from, and what multiplies there."""
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"
    return f"The machine's load is {load}; products on a CPU are by {library()}."


def table(rows: Sequence[Row], columns: Mapping[str, str], title: str = "", section: str = "") -> Table:
    """Return a table of these columns, given as {key: heading}; rows of a `section` follow its value."""
    found = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", padding=(0, 0, 0, 1))
    for key, heading in columns.items():
        words = all(isinstance(row[key], str) for row in rows)
        found.add_column(heading, justify="left" if words else "right", no_wrap=True)
    last = None
    for row in rows:
        if section and row[section] != last:
            last = row[section]
            found.add_section()
            found.add_row(Text(last, style="bold"))
        found.add_row(*(cell(row[key]) for key in columns))
    return found


def cell(value: object) -> str:
    """
    >>> [cell(value) for value in (None, 1234567, 0.01234, 123.4, [0.912, 1.1])]
    ['', '1,234,567', '0.01', '123', '0.91–1.10']
    """
    if isinstance(value, list):
        return "–".join(cell(part) for part in value)
    if isinstance(value, float):
        return f"{value:,.{0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2}f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def write_json(rows: Sequence[Row], file: Path) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(list(rows), indent=1, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"--json {file} cannot be written: {error.strerror}") from error
