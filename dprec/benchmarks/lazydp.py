"""DLRM on large tables: plain SGD, DP-SGD with dense noise, EANA and LazyDP, side by side on the same tables.

The cost of a step is that of a whole step, and that of its embedding part alone: the same tables under a model that
only adds up what it looks up.

What is measured is a run that has gone on for long (`dprec.benchmarks.table_work.steady`): no batch comes twice, and
rows wait for as long as such batches let them. All sizes take turns in one process, in the same memory: small
tables are the first rows of large ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from rich.console import Group
from torch import Tensor, nn

from dprec.benchmarks.common import report
from dprec.benchmarks.common.measure import against, race
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.table_work import noise
from dprec.benchmarks.table_work.networks import MLPERF, NETWORKS, Network
from dprec.benchmarks.table_work.stages import STAGES
from dprec.benchmarks.table_work.steady import LookUps
from dprec.benchmarks.table_work.steps import HOOKED, SYSTEMS, Pooled, Step
from dprec.errors import UserError
from dprec.models import DLRM
from dprec.models.clicks import ClickModel
from dprec.reporting import figure
from dprec_kernels.threads import one_thread

BATCH = 2048
SIZES = (0.4, 4.0, 8.0)  # GB of tables
BATCHES = (1024, 2048, 4096)
POOLINGS = (1, 10, 20, 30)
ACCESS = {"even": 1.0, "low skew": 0.36, "medium skew": 0.1, "high skew": 0.006}  # the rows of nine look-ups in ten
UNFUSED, REPLAYED = "DP-SGD, unfused", "LazyDP, noise replayed"
UNFUSED_FITS = 4.0  # GB: it needs as much again, so that it has its own process from here on
ROUNDS, SLOW_ROUNDS = 5, 3
MINUTES = 30.0  # seconds of a step that is measured once, and its embedding part not by itself
SWEEPS = ("sizes", "batches", "poolings", "access", "networks")
NOISE = "noise"  # normals alone, of which there is a table of its own
SWEPT = ("table_gb", "batch", "pooling", "access", "network")  # what a sweep varies; everything else is equal
MILLISECONDS = [lead * 10**power for power in range(6) for lead in (1, 2, 5)]  # ticks of a picture
OPTIONS = ("sweeps",)  # of the command line
COLUMNS = {
    "system": "system",
    "ms_per_step": "ms/step",
    "ratio_to_sgd": "ratio",
    "ratio_spread": "middle half",
    "ratio_to_smallest": "of the smallest",
    "embedding_ms": "embedding ms",
}
NETWORKS_AT = 4.0  # GB


@dataclass(frozen=True)
class Case:
    """The sizes of tables and of the batches that read them."""

    gigabytes: float
    batch: int = BATCH
    pooling: int = 1
    access: str = "even"
    hooked: bool = False  # whether the variants of DP-SGD with hooks take part
    quick: bool = False
    only: tuple[str, ...] = ()  # systems; else all that fit
    network: str = MLPERF

    @property
    def shape(self) -> Network:
        return NETWORKS[self.network]

    @property
    def ids(self) -> int:
        """Rows of each table."""
        return self.shape.ids(self.gigabytes)

    @property
    def systems(self) -> list[str]:
        left_out = set() if self.hooked else set(HOOKED)
        if self.gigabytes >= UNFUSED_FITS:
            left_out.add(UNFUSED)
        if self.network != MLPERF:
            left_out |= {UNFUSED, REPLAYED}
        return [s for s in SYSTEMS if (s in self.only if self.only else s not in left_out)]

    @property
    def look_ups(self) -> LookUps:
        return LookUps(self.batch, self.shape.tables, self.ids - 1, self.pooling, ACCESS[self.access])


SIZED = Case(0)  # what the cases of the sizes have in common


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
        "networks": [
            replace(base, gigabytes=base.gigabytes if quick else NETWORKS_AT, pooling=network.pooling, network=name)
            for name, network in NETWORKS.items()
        ],
    }
    found: dict[Case, Case] = {}
    for case in (case for sweep in sweeps for case in swept[sweep]):
        same = replace(case, hooked=False)
        found[same] = case if case.hooked else found.get(same, case)
    return list(found.values())


def run(quick: bool, say: Callable[[str], None], sweeps: str | None = None) -> list[Row]:
    """Return a row for each case of the sweeps and each system."""
    wanted = list(SWEEPS) if sweeps is None else sweeps.split(",")
    if wanted == [NOISE]:
        return noise.run(quick, say)
    if unknown := [sweep for sweep in wanted if sweep not in SWEEPS]:
        raise UserError(f"--sweeps has {unknown[0]!r}: give some of {','.join(SWEEPS)}, or {NOISE} alone")
    chosen = cases(wanted, quick)
    together = [case for case in chosen if "sizes" in wanted and replace(case, gigabytes=0, hooked=False) == SIZED]
    groups = [together, *([case] for case in chosen if case not in together)]
    if "sizes" in wanted:
        groups.append([Case(UNFUSED_FITS, only=("SGD", UNFUSED))])
    if quick:
        return [row for group in ([case] for case in chosen) for row in compared(group)]
    rows: list[Row] = []
    for group in filter(None, groups):
        for case in group:
            say(f"{case.gigabytes:g} GB of tables, batch {case.batch:,}, pooling {case.pooling}, {case.access}")
        # A process for each, since memory is kept by the one that had it.
        with ProcessPoolExecutor(1, get_context("spawn")) as own:
            rows += own.submit(compared, group).result()
    return rows


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison and its summary."""
    if "millions_per_second" in rows[0]:
        return noise.table(rows)
    line = f"DLRM. One thread. The stages of a step are in --json. {report.machine()}"
    case = "{network}, {table_gb:g} GB, {batch:,} records, {pooling} look-ups, {access}"
    named = [row | {"case": case.format(**row)} for row in rows]
    return Group(report.table(named, COLUMNS, section="case"), line)


def picture(rows: Sequence[Row], file: Path) -> None:
    """Time of a step against the varied quantity, or normals in a second."""
    if "millions_per_second" in rows[0]:
        return noise.picture(rows, file)
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
def compared(group: Sequence[Case]) -> list[Row]:
    """Measure all systems of some cases in turns, over tables in the same memory."""
    shape = group[0].shape  # of all of them
    memory = torch.empty(shape.tables, max(case.ids for case in group), shape.dim).normal_(0.0, 0.1)
    memory[:, 0] = 0.0
    models = {case: _model(case, memory) for case in group}
    whole = _raced({case: model for case, (model, _) in models.items()}, {})
    known = {key: min(timed.seconds) for key, timed in whole.items()}
    sizes = len(group) > 1 or group[0].only or group[0].quick  # elsewhere `tables_ms` is near enough
    embedding = _raced({case: part for case, (_, part) in models.items()}, known) if sizes else {}
    smallest = min(group, key=lambda case: case.gigabytes)
    rows: list[Row] = []
    for (case, name), timed in whole.items():
        if case.only and name == "SGD":
            continue  # there it is what the other is measured beside
        ratio, spread = against(timed.seconds, timed.sgd)
        steps, part = timed.step.taken[1:] or timed.step.taken, embedding.get((case, name))
        beside = whole[smallest, name].seconds
        growth = against(timed.seconds, beside) if len(beside) == len(timed.seconds) == ROUNDS else (None, None)
        rows.append(
            {
                "table_gb": case.gigabytes,
                "rows": case.shape.tables * case.ids,
                "batch": case.batch,
                "pooling": case.pooling,
                "access": case.access,
                "network": case.network,
                "system": name,
                "rounds": len(timed.seconds),
                "ms_per_step": 1e3 * float(np.median(timed.seconds)),
                "ms_spread": [1e3 * min(timed.seconds), 1e3 * max(timed.seconds)],
                "ratio_to_sgd": ratio,
                "ratio_spread": spread,
                "ratio_to_smallest": growth[0],
                "ratio_to_smallest_spread": growth[1],
                "embedding_ms": 1e3 * float(np.median(part.seconds)) if part else None,
                "survivors": timed.step.rules.report().get("rows_noised"),
                **{f"{stage}_ms": 1e3 * float(np.median([s.get(stage, 0.0) for s in steps])) for stage in STAGES},
            }
        )
    return rows


def _model(case: Case, memory: Tensor) -> tuple[ClickModel, ClickModel]:
    """Return DLRM over the first rows of this memory, and its embedding part alone."""
    shape = case.shape
    bottom, top = ([8], [8]) if case.quick else (list(shape.bottom), list(shape.top))
    model = DLRM(13, [1] * shape.tables, shape.dim, bottom, top, optimizer="sgd", weight_decay=0.0)
    for bag, values in zip(model.tables.tables, memory, strict=True):
        assert isinstance(bag, nn.EmbeddingBag)
        bag.num_embeddings, bag.weight = case.ids, nn.Parameter(values[: case.ids])
    return model, Pooled(model.tables, [case.ids - 1] * shape.tables)


@dataclass
class Timed:
    """Seconds of a system's rounds, and of SGD in the same rounds."""

    step: Step
    seconds: list[float]
    sgd: list[float]


Key = tuple[Case, str]


def _raced(models: Mapping[Case, ClickModel], known: Mapping[Key, float]) -> dict[Key, Timed]:
    """Time every system of every case; what is known to take minutes is left out."""
    steps = {
        (case, name): Step(name, model, case.look_ups)
        for case, model in models.items()
        for name in case.systems
        if known.get((case, name), 0.0) < MINUTES
    }
    slow = [key for key in steps if key[1].startswith("DP-SGD") or "replayed" in key[1]]
    quick = next(iter(models)).quick
    turn = 0.0 if quick else 1.0
    seconds = race({key: step for key, step in steps.items() if key not in slow}, 2 if quick else ROUNDS, turn)
    timed = {key: Timed(steps[key], taken, seconds[key[0], "SGD"]) for key, taken in seconds.items()}
    # A sweep over the tables takes seconds, and leaves the caches to nobody: few turns, two at a time.
    for key in slow:
        base = (key[0], "SGD")
        timed[key] = Timed(steps[key], [], [])
        for _ in range(1 if quick else SLOW_ROUNDS):
            pair = race({base: steps[base], key: steps[key]}, 1, turn, least=1)
            timed[key].seconds += pair[key]
            timed[key].sgd += pair[base]
            if pair[key][0] > MINUTES:
                break
    return {key: timed[key] for key in steps}
