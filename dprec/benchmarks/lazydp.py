"""DLRM on large tables: plain SGD, DP-SGD with dense noise, EANA and LazyDP, side by side on the same tables.

Two costs are measured: of a whole step, and of its embedding part alone, with the same tables under a model that only
sums its look-ups.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.console import Group

from dprec.benchmarks import figure, report
from dprec.benchmarks.compare import one_thread
from dprec.benchmarks.measure import against, race
from dprec.benchmarks.report import Row
from dprec.benchmarks.stages import STAGES
from dprec.benchmarks.table_steps import HOOKED, SYSTEMS, Pooled, Step, invented
from dprec.data.batch import ClickBatch
from dprec.errors import UserError
from dprec.models import DLRM
from dprec.models.clicks import ClickModel

TABLES, DIM, BATCH = 26, 128, 2048
SIZES = (0.4, 4.0, 8.0)  # GB of tables
BATCHES = (1024, 2048, 4096)
POOLINGS = (1, 10, 20, 30)
ACCESS = {"even": 1.0, "low skew": 0.36, "medium skew": 0.1, "high skew": 0.006}  # the rows of nine look-ups in ten
UNFUSED_FITS = 4.0  # GB: it needs twice the tables' memory
ROUNDS, SLOW_ROUNDS = 5, 2
SWEEPS = ("sizes", "batches", "poolings", "access")
SWEPT = ("table_gb", "batch", "pooling", "access")  # what a sweep varies; everything else is equal
MILLISECONDS = [lead * 10**power for power in range(6) for lead in (1, 2, 5)]  # ticks of a picture
OPTIONS = ("sweeps",)  # of the command line
COLUMNS = {
    "system": "system",
    "ms_per_step": "ms/step",
    "ratio_to_sgd": "ratio",
    "ratio_spread": "middle half",
    "embedding_ms": "embedding ms",
}


@dataclass(frozen=True)
class Case:
    """The sizes of tables and of the batches that read them."""

    gigabytes: float
    batch: int = BATCH
    pooling: int = 1
    access: str = "even"
    hooked: bool = False  # whether the variants of DP-SGD with hooks take part
    quick: bool = False

    @property
    def ids(self) -> int:
        """Rows of each table."""
        return max(2, round(self.gigabytes * 1e9 / (TABLES * DIM * 4)))

    @property
    def systems(self) -> list[str]:
        left_out = set() if self.hooked else set(HOOKED)
        if self.gigabytes > UNFUSED_FITS:
            left_out.add("DP-SGD, unfused")
        return [system for system in SYSTEMS if system not in left_out]


def cases(sweeps: Sequence[str], quick: bool) -> list[Case]:
    """Return the cases of some sweeps, each once.

    >>> [case.pooling for case in cases(["poolings"], quick=False)]
    [1, 10, 20, 30]
    """
    sizes, batches, poolings = ((0.002, 0.004), (64,), (1, 10)) if quick else (SIZES, BATCHES, POOLINGS)
    base = Case(sizes[0], batch=batches[0] if quick else BATCH, quick=quick)
    swept = {
        "sizes": [replace(base, gigabytes=size) for size in sizes],
        "batches": [replace(base, batch=batch, hooked=True) for batch in batches],
        "poolings": [replace(base, pooling=pooling) for pooling in poolings],
        "access": [replace(base, access=access) for access in (["high skew"] if quick else ACCESS)],
    }
    found: dict[Case, Case] = {}
    for case in (case for sweep in sweeps for case in swept[sweep]):
        same = replace(case, hooked=False)
        found[same] = case if case.hooked else found.get(same, case)
    return list(found.values())


def run(quick: bool, say: Callable[[str], None], sweeps: str | None = None) -> list[Row]:
    """Return a row for each case of the sweeps and each system."""
    wanted = list(SWEEPS) if sweeps is None else sweeps.split(",")
    if unknown := [sweep for sweep in wanted if sweep not in SWEEPS]:
        raise UserError(f"--sweeps has {unknown[0]!r}: give some of {','.join(SWEEPS)}")
    chosen = cases(wanted, quick)
    if quick:
        return [row for case in chosen for row in compared(case)]
    rows: list[Row] = []
    for case in chosen:
        say(f"{case.gigabytes:g} GB of tables, batch {case.batch:,}, pooling {case.pooling}, {case.access}")
        # A process for each, because a process keeps its memory.
        with ProcessPoolExecutor(1, get_context("spawn")) as own:
            rows += own.submit(compared, case).result()
    return rows


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison and its summary."""
    line = (
        f"DLRM, {TABLES} tables of width {DIM}. One thread. The stages of a step are in --json. "
        f"The machine's load is {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs."
    )
    named = [
        row | {"case": f"{row['table_gb']:g} GB, {row['batch']:,} records, {row['pooling']} look-ups, {row['access']}"}
        for row in rows
    ]
    return Group(report.table(named, COLUMNS, section="case"), line)


ready_to_draw = figure.pyplot


def picture(rows: Sequence[Row], file: Path) -> None:
    """Time of a step against the varied quantity."""
    plt = figure.pyplot()
    common = {key: Counter(row[key] for row in rows).most_common(1)[0][0] for key in SWEPT}
    across = {"table_gb": "GB of tables", "batch": "records a step", "pooling": "look-ups a feature"}
    axes = [key for key in across if len({row[key] for row in rows}) > 1] or ["table_gb"]
    drawn, panels = plt.subplots(
        1, len(axes), figsize=(2.4 + 3.4 * len(axes), 3.4), layout="constrained", squeeze=False
    )
    for panel, key in zip(panels[0], axes, strict=True):
        fixed = [other for other in SWEPT if other != key]
        for system in SYSTEMS:
            here = [row for row in rows if row["system"] == system and all(row[k] == common[k] for k in fixed)]
            colour = figure.DPREC if system == "LazyDP" else None
            if here:
                points = sorted((row[key], row["ms_per_step"]) for row in here)
                panel.plot(*zip(*points, strict=True), marker="o", markersize=4, label=system, color=colour)
        panel.set_xscale("log")
        panel.set_yscale("log")
        measured = sorted({row[key] for row in rows})
        panel.set_xticks(measured, [f"{value:g}" for value in measured])
        panel.set_xticks([], minor=True)
        low, high = panel.get_ylim()
        shown = [tick for tick in MILLISECONDS if low <= tick <= high]
        panel.set_yticks(shown, [f"{tick:,}" for tick in shown])
        panel.set_yticks([], minor=True)
        panel.set_xlabel(across[key])
        figure.dress(panel, "a step, ms")
    drawn.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=7)
    figure.save(plt, drawn, file)


@one_thread()
def compared(case: Case) -> list[Row]:
    """Measure all systems of a case in turns."""
    ids = case.ids
    sizes = {"bottom": [8], "top": [8]} if case.quick else {"bottom": [512, 256], "top": [1024, 1024, 512, 256]}
    model = DLRM(13, [ids - 1] * TABLES, dim=DIM, optimizer="sgd", weight_decay=0.0, **sizes)  # type: ignore[arg-type]
    part = Pooled(model.tables, model.vocabularies)
    hot = ACCESS[case.access]
    batches = [invented(case.batch, TABLES, ids - 1, case.pooling, hot, seed) for seed in range(4 if case.quick else 8)]
    whole, sgd, steps = _raced(case, model, batches)
    embedding, _, _ = _raced(case, part, batches)
    rows: list[Row] = []
    for name in case.systems:
        ratio, spread = against(whole[name], sgd[name])
        stages = steps[name].taken[1:]
        rows.append(
            {
                "table_gb": case.gigabytes,
                "rows": TABLES * ids,
                "batch": case.batch,
                "pooling": case.pooling,
                "access": case.access,
                "system": name,
                "ms_per_step": 1e3 * min(whole[name]),
                "ratio_to_sgd": ratio,
                "ratio_spread": spread,
                "embedding_ms": 1e3 * min(embedding[name]),
                "survivors": steps[name].rules.report().get("rows_noised"),
                **{f"{stage}_ms": 1e3 * float(np.median([s.get(stage, 0.0) for s in stages])) for stage in STAGES},
            }
        )
    return rows


def _raced(
    case: Case, model: ClickModel, batches: Sequence[ClickBatch]
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, Step]]:
    """Return the seconds of each system's rounds, those of SGD in the same rounds, and the steps."""
    steps = {name: Step(name, model, batches) for name in case.systems}
    slow = [name for name in steps if name.startswith("DP-SGD") or "replayed" in name]
    seconds = race(
        {name: step for name, step in steps.items() if name not in slow},
        2 if case.quick else ROUNDS,
        0.0 if case.quick else 1.0,
    )
    sgd = dict.fromkeys(seconds, seconds["SGD"])
    # A pass over the tables takes seconds and fills the caches, so these systems get few turns, each beside SGD.
    for name in slow:
        pair = race({"SGD": steps["SGD"], name: steps[name]}, 1 if case.quick else SLOW_ROUNDS, 0.0)
        seconds[name], sgd[name] = pair[name], pair["SGD"]
    return seconds, sgd, steps
