"""How many normals come in a second, from each source, beside how many numbers memory takes: LazyDP's Figure 6.

Noise for a step of DP-SGD is drawn and added. Where its source is slower than memory, as all are, drawing is what a
step waits for.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

import study
from dprec.noise.gaussian import CHUNK, GaussianNoise
from dprec_kernels.dense_noise import dense_noise
from study import Row

NUMBERS, WIDTH, ROUNDS = 1 << 25, 128, 7  # 128 MB of float32, beyond any cache
FLOOR = "numbers scaled in place"  # what memory alone takes of a step that adds noise
COLUMNS = {
    "system": "source",
    "threads": "threads",
    "ns": "ns a number",
    "millions_per_second": "millions/s",
    "of_memory": "times scaling's time",
}


def sources(count: int) -> dict[str, Callable[[], object]]:
    """Return what makes so many numbers. Each has streams and memory of its own, so that threads share nothing."""
    numbers = torch.ones(count // WIDTH, WIDTH)
    rows, flat = torch.arange(len(numbers)), numbers.view(-1).numpy()
    generator, noise = torch.Generator().manual_seed(0), GaussianNoise(seed=0)
    philox = np.random.Generator(np.random.Philox(0))
    return {
        FLOOR: lambda: numbers.mul_(0.999),
        "zeros written": numbers.zero_,
        "torch's generator": lambda: numbers.normal_(generator=generator),
        "numpy's Philox": lambda: philox.standard_normal(out=flat, dtype=np.float32),
        "dprec": lambda: noise(numbers, rows),
        "dprec, added to a table": lambda: dense_noise(numbers, 1e-3, noise),
    }


def seconds(steps: Sequence[Callable[[], object]]) -> float:
    """Return the processor's seconds of the slowest, each in a thread."""

    def timed(step: Callable[[], object]) -> float:
        begin = time.thread_time()
        step()
        return time.thread_time() - begin

    with ThreadPoolExecutor(len(steps)) as threads:
        return max(threads.map(timed, steps))


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each source and number of threads: the fastest of the rounds."""
    torch.set_num_threads(1)
    count, rounds = (CHUNK, 1) if asked.quick else (NUMBERS, ROUNDS)
    steps = [sources(count), sources(count)]
    keys = [(key, threads) for key in steps[0] for threads in (1, 2)]
    taken = {
        (key, threads): min(seconds([own[key] for own in steps[:threads]]) for _ in range(rounds))
        for key, threads in keys
    }
    rows = []
    for (key, threads), least in taken.items():
        ns = 1e9 * least / (threads * count)
        row = {"system": key, "threads": threads, "numbers": threads * count, "ns": ns}
        rows.append(row | {"millions_per_second": 1e3 / ns, "of_memory": least / taken[FLOOR, threads]})
    return rows


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
