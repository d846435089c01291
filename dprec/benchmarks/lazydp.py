"""DLRM on large tables: plain SGD, dense DP-SGD, EANA and LazyDP, side by side on the same tables.

The cost of a step is that of a whole step, and that of its embedding part alone: the same tables under a model that
only adds up what it looks up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Group
from torch import Tensor, nn

from dprec.benchmarks import figure, report
from dprec.benchmarks.compare import one_thread
from dprec.benchmarks.measure import against, race
from dprec.benchmarks.report import Row
from dprec.data.batch import ClickBatch
from dprec.models import DLRM
from dprec.models.clicks import ClickModel
from dprec.models.optimizers import SGD
from dprec.privacy.clipping import Clipping
from dprec.privacy.gradient import PrivateGradient, padding_rows
from dprec.privacy.noise import GaussianNoise
from dprec.privacy.row_rules import RowRules
from dprec.privacy.strategy import Strategy
from dprec.sparsity import EANA, Dense, LazyDP

TABLES, DIM, BATCH = 26, 128, 2048
SIZES = (0.4, 4.0, 8.0)  # GB of tables
UNFUSED_FITS = 4.0  # GB: it needs as much again
ROUNDS = 5
SYSTEMS: dict[str, Callable[[], list[Strategy]] | None] = {
    "SGD": None,
    "EANA (not private)": lambda: [EANA()],
    "LazyDP": lambda: [LazyDP()],
    "LazyDP, noise replayed": lambda: [LazyDP(aggregate=False)],
    "DP-SGD, fused": lambda: [Dense()],
    "DP-SGD, unfused": list,
}
COLUMNS = {
    "table_gb": "GB",
    "pooling": "pooling",
    "system": "system",
    "ms_per_step": "ms/step",
    "ratio_to_sgd": "ratio",
    "ratio_spread": "middle half",
    "embedding_ms": "embedding ms",
}


class Pooled(ClickModel):
    """Adds up what it looks up: the embedding part of a step and nothing else."""

    def __init__(self, tables: nn.Module, vocabularies: Sequence[int]) -> None:
        super().__init__(13, vocabularies, optimizer="sgd")
        self.tables = tables

    def logits(self, batch: ClickBatch) -> Tensor:
        total: Tensor = sum(vector.sum(1) for vector in self.tables(batch.categories))
        return total


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each size of the tables, each pooling and each system."""
    sizes = (0.002, 0.004) if quick else SIZES
    cases = [(gigabytes, 1) for gigabytes in sizes] + [(sizes[0], 10)]
    if quick:
        return [row for case in cases for row in _compared(*case, quick)]
    rows: list[Row] = []
    for case in cases:
        say(f"{case[0]:g} GB of tables")
        # A process for each, since memory is kept by the one that had it.
        with ProcessPoolExecutor(1, get_context("spawn")) as own:
            rows += own.submit(_compared, *case, quick).result()
    return rows


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison and what follows from it."""
    line = (
        f"DLRM, {TABLES} tables of width {DIM}, {rows[0]['batch']:,} records a step, rows drawn evenly. One thread. "
        f"The machine's load is {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs."
    )
    return Group(report.table(rows, COLUMNS, section=""), line)


ready_to_draw = figure.pyplot


def picture(rows: Sequence[Row], file: Path) -> None:
    """Time of a step against the size of the tables."""
    plt = figure.pyplot()
    drawn, panels = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for panel, (key, title) in zip(
        panels, (("ms_per_step", "a step"), ("embedding_ms", "its embedding part")), strict=True
    ):
        for system in SYSTEMS:
            found = sorted((r["table_gb"], r[key]) for r in rows if r["system"] == system and r["pooling"] == 1)
            colour = figure.DPREC if system == "LazyDP" else None
            if found:
                panel.plot(*zip(*found, strict=True), marker="o", markersize=4, label=system, color=colour)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("GB of tables")
        panel.set_title(f"{title}, ms", loc="left", fontsize=11, fontweight="bold")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    figure.save(plt, drawn, file)


@one_thread()
def _compared(gigabytes: float, pooling: int, quick: bool) -> list[Row]:
    ids, records = max(2, round(gigabytes * 1e9 / (TABLES * DIM * 4))), 64 if quick else BATCH
    sizes = {"bottom": [8], "top": [8]} if quick else {"bottom": [512, 256], "top": [1024, 1024, 512, 256]}
    model = DLRM(13, [ids - 1] * TABLES, dim=DIM, optimizer="sgd", weight_decay=0.0, **sizes)  # type: ignore[arg-type]
    part = Pooled(model.tables, model.vocabularies)
    batches = [_batch(records, ids - 1, pooling, seed) for seed in range(8)]
    wanted = {n: s for n, s in SYSTEMS.items() if n != "DP-SGD, unfused" or gigabytes <= UNFUSED_FITS}
    times = []
    for whole in (model, part):
        steps = {name: Step(whole, strategies, batches) for name, strategies in wanted.items()}
        slow = {name for name in steps if name.startswith("DP-SGD") or "replayed" in name}
        fast = {name: step for name, step in steps.items() if name not in slow}
        seconds = race(fast, 2 if quick else ROUNDS, 0.0 if quick else 1.0)
        for name in slow:  # a sweep over the tables takes seconds: one after the other, beside one turn of SGD
            seconds |= {name: race({name: steps[name]}, 1, 0.0)[name] * len(seconds["SGD"])}
        times.append(seconds)
        del steps
    found = {name: (times[0][name], times[1][name]) for name in wanted}
    rows = []
    for name, (step, embedding) in found.items():
        ratio, spread = against(step, found["SGD"][0])
        rows.append(
            {
                "table_gb": gigabytes,
                "batch": records,
                "pooling": pooling,
                "system": name,
                "ms_per_step": 1e3 * min(step),
                "ratio_to_sgd": ratio,
                "ratio_spread": spread,
                "embedding_ms": 1e3 * min(embedding),
            }
        )
    return rows


class Step:
    """One system's step on a model that it shares with the others."""

    def __init__(
        self, model: ClickModel, strategies: Callable[[], list[Strategy]] | None, batches: Sequence[ClickBatch]
    ) -> None:
        self.model, self.batches, self.count = model, batches, 0
        self.parameters: Mapping[str, nn.Parameter] = dict(model.named_parameters())
        self.optimizer = SGD(self.parameters.values(), lr=1e-3, fused=True)
        self.rules = RowRules([] if strategies is None else strategies())
        self.rule: Any = self._plain
        self.ready = strategies is None
        self._prepare = partial(self._make_private, len(batches[0]))

    def __call__(self) -> None:
        if not self.ready:
            self._prepare()
        for part in self.model.modules():  # torch's own sparse gradients are for plain SGD
            if isinstance(part, nn.EmbeddingBag):
                part.sparse = self.rule == self._plain
        self.rule(self.parameters, self.model.losses, [self.batches[self.count % len(self.batches)]])
        self.rules.update(self.optimizer)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.count += 1

    def _make_private(self, expected: int) -> None:
        noise, clipping = GaussianNoise(), Clipping("flat", 1.0)
        self.rules.begin(self.model, self.parameters, 1.0, 1 / expected, noise)
        for strategy in self.rules.strategies:  # not `guard`: the others' steps would settle all rows
            strategy.bind(self.optimizer, 0)
        self.rule = PrivateGradient(
            clipping, self.rules.gradient_noise, expected, noise, padding_rows(self.model), rules=self.rules
        )
        self.ready = True

    def _plain(self, parameters: object, losses: Callable[[Any], Tensor], batch: Sequence[Any]) -> None:
        (losses(batch[0]).sum() / len(batch[0])).backward()


def _batch(records: int, ids: int, pooling: int, seed: int) -> ClickBatch:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 100, (records, 13), generator=generator).float()
    categories = torch.randint(0, ids, (records, TABLES, pooling), generator=generator)
    return ClickBatch(numbers, categories, torch.rand(records, generator=generator).round())
