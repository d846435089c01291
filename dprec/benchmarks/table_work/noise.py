"""How many normals come in a second, from each source, beside how many numbers memory takes: LazyDP's Figure 6.

Noise for a step of DP-SGD is drawn and added. Where its source is slower than memory, as all are, drawing is what a
step waits for, so pieces that stay in a cache bring little, and fewer normals bring all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Group
from torch import Tensor

from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row
from dprec.noise.gaussian import CHUNK, GaussianNoise
from dprec.reporting import figure
from dprec_kernels.dense_noise import dense_noise
from dprec_kernels.threads import one_thread

NUMBERS, WIDTH, ROUNDS = 1 << 25, 128, 7  # 128 MB of float32, beyond any cache
FLOOR = ("numbers scaled in place", "memory")  # what memory alone takes of a step that adds noise
COLUMNS = {
    "system": "source", "where": "into", "threads": "threads", "ns": "ns a number",
    "millions_per_second": "millions/s", "of_memory": "times scaling's time",
}  # fmt: skip


@dataclass
class Sources:
    """What fills or changes numbers, with streams and memory of its own, so that threads share nothing."""

    numbers: Tensor  # (n / WIDTH, WIDTH)

    def __post_init__(self) -> None:
        self.torch, self.dprec = torch.Generator().manual_seed(0), GaussianNoise(seed=0)
        self.philox = np.random.Generator(np.random.Philox(0))
        self.rows = torch.arange(len(self.numbers))
        self.chunk = self.numbers[: CHUNK // WIDTH]

    def steps(self) -> dict[tuple[str, str], Callable[[], object]]:
        """Each makes as many numbers as there are: in memory, or in the same cache-sized piece again and again."""
        parts, flat = range(0, len(self.numbers), len(self.chunk)), self.numbers.view(-1).numpy()
        piece, own = self.chunk.view(-1).numpy(), self.rows[: len(self.chunk)]
        noise, placed = self.dprec, self.dprec.placed()
        return {
            FLOOR: lambda: self.numbers.mul_(0.999),
            ("zeros written", "memory"): self.numbers.zero_,
            ("torch's generator", "memory"): lambda: self.numbers.normal_(generator=self.torch),
            ("torch's generator", "a cache"): lambda: [self.chunk.normal_(generator=self.torch) for _ in parts],
            ("numpy's Philox", "memory"): lambda: self.philox.standard_normal(out=flat, dtype=np.float32),
            ("numpy's Philox", "a cache"): lambda: [
                self.philox.standard_normal(out=piece, dtype=np.float32) for _ in parts
            ],
            ("dprec", "memory"): lambda: noise(self.numbers, self.rows),
            ("dprec", "a cache"): lambda: [noise(self.chunk, own) for _ in parts],
            ("dprec, added to a table", "memory"): lambda: dense_noise(self.numbers, 1e-3, noise),
            ("dprec, by place", "a cache"): lambda: [placed(self.chunk, own) for _ in parts],
        }


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each source, kind of memory and number of threads; a thread fills memory of its own."""
    numbers, rounds = (CHUNK, 1) if quick else (NUMBERS, ROUNDS)
    seconds: dict[tuple[tuple[str, str], int], float] = {}
    with one_thread():
        sources = [Sources(torch.ones(numbers // WIDTH, WIDTH)) for _ in range(2)]
        steps = [source.steps() for source in sources]
        for number in range(rounds):
            for key in steps[0]:
                for threads in (1, 2):
                    say(f"round {number + 1} of {rounds}: {key[0]} into {key[1]}")
                    taken = _seconds([own[key] for own in steps[:threads]])
                    seconds[key, threads] = min(taken, seconds.get((key, threads), taken))
    rows = []
    for ((system, where), threads), taken in seconds.items():
        each, floor = taken / (threads * numbers), seconds[FLOOR, threads] / (threads * numbers)
        found = {"numbers": threads * numbers, "ns": 1e9 * each, "millions_per_second": 1e-6 / each}
        rows.append({"system": system, "where": where, "threads": threads, **found, "of_memory": each / floor})
    return rows


def table(rows: Sequence[Row]) -> Group:
    line = f"Float32, the fastest of the rounds, in the processor's time. {report.machine()}"
    return Group(report.table(rows, COLUMNS), line)


def picture(rows: Sequence[Row], file: Path) -> None:
    shown = [row for row in rows if row["threads"] == 1]
    names = [f"{row['system']}, {row['where']}" for row in shown]
    figure.bars(names, [row["millions_per_second"] for row in shown], "million numbers a second, one thread", file)


def _seconds(steps: Sequence[Callable[[], object]]) -> float:
    """Return the processor's seconds of the slowest, each in a thread."""

    def timed(step: Callable[[], object]) -> float:
        begin = time.thread_time()
        step()
        return time.thread_time() - begin

    with ThreadPoolExecutor(len(steps)) as threads:
        return max(threads.map(timed, steps))
