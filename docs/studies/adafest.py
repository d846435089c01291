"""AdaFEST's Table 4: 100 steps on one table of up to ten million rows, beside DP-SGD with noise in every row.

Both are scripts with `dprec.private`. Seconds are the processor's, of whole steps: the draw of users included.
"""

from __future__ import annotations

import time
from argparse import Namespace

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import study
from dprec import private
from dprec.models.learning.optimizers import SGD
from dprec.sparsity import AdaFEST, Dense, Strategy
from study import Row

DIM, BATCH = 64, 1024
COLUMNS = {"rows": "rows", "system": "system", "ms_per_step": "ms/step", "seconds_of_100": "s of 100 steps",
           "ratio_to_adafest": "times AdaFEST"}  # fmt: skip


class OneTable(nn.Module):
    """Scores an id by its row."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.zeros(rows, DIM), freeze=False)
        self.weight: Tensor
        self.register_buffer("weight", torch.randn(DIM))

    def losses(self, batch: list[Tensor]) -> Tensor:
        scores: Tensor = self.table(batch[0]) @ self.weight
        return scores


def seconds(rows: int, strategy: Strategy, steps: int) -> float:
    """Return the mean seconds of a step, after a first one."""
    torch.manual_seed(0)
    model = OneTable(rows)
    users = TensorDataset((torch.rand(10 * BATCH) ** 8 * rows).long())  # few ids are read often
    training = private(
        model, SGD(model.parameters(), lr=0.01, fused=True), users, noise_multiplier=1.0, expected_batch=BATCH,
        steps=steps + 1, sparsity=[strategy], verify=0.0,
    )  # fmt: skip
    begin = 0.0
    for batch in training:
        training.step(batch)
        begin = begin or time.process_time()
    return (time.process_time() - begin) / steps


def measure(asked: Namespace) -> list[Row]:
    torch.set_num_threads(1)
    found = []
    for rows in (1_000, 10_000) if asked.quick else (100_000, 1_000_000, 10_000_000):
        taken = {
            "AdaFEST": seconds(rows, AdaFEST(threshold=25.0, noise_ratio=5.0), 5 if asked.quick else 100),
            "DP-SGD, fused": seconds(rows, Dense(), 2 if asked.quick else 3),
        }
        for name, each in taken.items():
            times = {
                "ms_per_step": 1e3 * each,
                "seconds_of_100": 100 * each,
                "ratio_to_adafest": each / taken["AdaFEST"],
            }
            found.append({"rows": rows, "table_gb": 4e-9 * rows * DIM, "batch": BATCH, "system": name, **times})
    return found


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
