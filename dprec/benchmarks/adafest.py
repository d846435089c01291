"""One embedding table of up to ten million rows: AdaFEST's step beside a dense one, on the same table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from rich.console import Group
from torch import Tensor, nn

from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row
from dprec.gradients.clipping import Clipping
from dprec.models.learning.optimizers import SGD
from dprec.noise.gaussian import GaussianNoise
from dprec.noise.step_noise import StepNoise
from dprec.privacy.step import PrivateGradient
from dprec.reporting import figure
from dprec.sparsity import AdaFEST, Dense
from dprec.sparsity.rows.row_rules import RowRules
from dprec.sparsity.rows.strategy import Strategy
from dprec_kernels.threads import one_thread

SIZES, DIM, BATCH, STEPS = (100_000, 1_000_000, 10_000_000), 64, 1024, 100
DENSE_STEPS = 3
COLUMNS = {
    "rows": "rows",
    "system": "system",
    "ms_per_step": "ms/step",
    "seconds_of_100": "s of 100 steps",
    "ratio_to_adafest": "ratio",
    "survivors": "survivors",
}


class OneTable(nn.Module):
    """A score for each id, by its row."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(torch.zeros(rows, DIM), freeze=False)
        self.weight: Tensor
        self.register_buffer("weight", torch.randn(DIM, generator=torch.Generator().manual_seed(0)))

    def losses(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.table(ids) @ self.weight
        return scores


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each size of the table and each system."""
    rows = []
    with one_thread():
        for size in (1_000, 10_000) if quick else SIZES:
            say(f"{size:,} rows")
            module = OneTable(size)
            generator = torch.Generator().manual_seed(1)
            batches = [(torch.rand(BATCH, generator=generator) ** 8 * size).long() for _ in range(10)]
            sparse = _seconds(module, AdaFEST(threshold=25.0, noise_ratio=5.0), batches, STEPS)
            dense = _seconds(module, Dense(), batches, 2 if quick else DENSE_STEPS)
            for name, (seconds, survivors) in (("AdaFEST", sparse), ("DP-SGD, fused", dense)):
                rows.append(
                    {
                        "rows": size,
                        "table_gb": 4e-9 * size * DIM,
                        "batch": BATCH,
                        "pooling": 1,
                        "system": name,
                        "ms_per_step": 1e3 * seconds,
                        "seconds_of_100": 100 * seconds,
                        "ratio_to_adafest": seconds / sparse[0],
                        "survivors": survivors,
                    }
                )
    return rows


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison and its summary."""
    line = (
        f"A table of width {DIM}, {BATCH:,} users a step, one look-up each. AdaFEST: the mean of {STEPS} steps; dense: "
        f"of {DENSE_STEPS}. One thread. {report.machine()}"
    )
    return Group(report.table(rows, COLUMNS), line)


def picture(rows: Sequence[Row], file: Path) -> None:
    """Time of 100 steps against the size of the table."""
    plt = figure.pyplot()
    drawn, panel = plt.subplots(figsize=(4.5, 3.4), layout="constrained")
    for system, colour in (("AdaFEST", figure.DPREC), ("DP-SGD, fused", figure.PRIVATE)):
        found = [(row["rows"], row["seconds_of_100"]) for row in rows if row["system"] == system]
        panel.plot(*zip(*found, strict=True), marker="o", color=colour, label=system)
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlabel("rows of the table")
    panel.set_ylabel("seconds of 100 steps")
    figure.dress(panel)
    panel.legend(frameon=False)
    figure.save(plt, drawn, file)


def _seconds(module: OneTable, strategy: Strategy, batches: Sequence[Tensor], steps: int) -> tuple[float, float | None]:
    """Return the mean processor time of a step after the first one, and how many rows got noise in it."""
    parameters, step_noise = dict(module.named_parameters()), StepNoise(GaussianNoise(), 1.0, BATCH)
    optimizer, rules = SGD(parameters.values(), lr=0.01, fused=True), RowRules([strategy])
    rules.begin(module, parameters, step_noise, 1.0)
    rules.guard(module, optimizer, 0)
    gradient = PrivateGradient(Clipping("flat", 1.0), step_noise, rules=rules)
    begin = 0.0
    for number in range(steps + 1):
        if number == 1:
            begin = time.process_time()
        gradient(parameters, module.losses, [batches[number % len(batches)]])
        rules.update(optimizer)
        optimizer.step()
        optimizer.zero_grad()
    return (time.process_time() - begin) / steps, rules.report().get("rows_noised")
