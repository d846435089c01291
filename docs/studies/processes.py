"""The same private steps in one process and in two: how many users a second, by the clock.

On two idle cores of an Intel Xeon, in three runs, one process trained 2,102 to 2,160 users a second and two 2,786 to
3,085: 1.45, 1.30 and 1.42 times as many. The two cores share one memory.

Runs take turns, each of processes with one thread that gloo connects. All draw the same users. The clock is only
true where nothing else is at work.
"""

from __future__ import annotations

import tempfile
import time
import warnings
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import study
from dprec import Sequences, Transformer, private
from study import Row

WARM, STEPS = 4, 8  # steps that do not count: the first allocates, and three are checked
COLUMNS = {
    "processes": "processes",
    "users_per_second": "users/s",
    "ms_per_step": "ms/step",
    "ratio": "users/s against one",
}


def work(number: int, processes: int, folder: str, quick: bool) -> None:
    """Take the steps of one process, and write its seconds."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=number, world_size=processes)
    users, items, length, batch = (60, 20, 6, 12) if quick else (6_040, 3_416, 50, 1_024)
    data = Sequences(
        "synthetic", synthetic_users=users, synthetic_items=items, min_events=0, max_length=length, batch_size=batch,
        sampling_seed=0,
    )  # fmt: skip
    data.setup()
    torch.manual_seed(0)
    model = Transformer(**data.sizes, dim=8 if quick else 64, dropout=0.0)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = data.train_dataloader()
    training = private(model, adam, loader, noise_multiplier=1.0, steps=WARM + STEPS, verify=0.0)
    begin = 0.0
    for batch in training:
        training.step(batch)
        if training.steps == WARM:
            begin = time.perf_counter()
    Path(folder, str(number)).write_text(str(time.perf_counter() - begin))
    dist.barrier()
    dist.destroy_process_group()


def seconds(processes: int, quick: bool) -> float:
    """Return the seconds of the slowest of so many new processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(work, args=(processes, folder, quick), nprocs=processes, start_method="spawn")
        return max(float(Path(folder, str(number)).read_text()) for number in range(processes))


def measure(asked: Namespace) -> list[Row]:
    """Return a row for each number of processes: medians of the rounds."""
    taken: dict[int, list[float]] = {1: [], 2: []}
    for number in range(1 if asked.quick else 3):
        for processes in (1, 2) if number % 2 == 0 else (2, 1):
            taken[processes].append(seconds(processes, asked.quick))
    rows = []
    for processes, found in taken.items():
        ms = 1e3 * float(np.median(found)) / STEPS
        row = {"processes": processes, "ms_per_step": ms, "users_per_second": (12 if asked.quick else 1_024) * 1e3 / ms}
        rows.append(row | {"ratio": float(np.median(np.divide(taken[1], found)))})
    return rows


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
