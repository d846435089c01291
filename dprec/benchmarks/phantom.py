"""The cost of clipping per user: DPFormer at the shapes of MovieLens-1M and Amazon Games, against its peers.

First each system's step is checked, on a few users, against one plain backward pass for each user. A wrong system gets
no number. Times are taken side by side in this process, on one thread or more; peak memory in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Group
from rich.table import Table

from dprec.benchmarks.common import bars, report
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.peers.architectures import TRANSFORMER
from dprec.benchmarks.peers.compare import COLUMNS, Comparison
from dprec.benchmarks.peers.memory import MemoryMeter
from dprec.benchmarks.peers.others import SYSTEMS, OptimizerAlone, PlainPyTorch
from dprec.benchmarks.peers.shapes import Shape
from dprec.benchmarks.peers.systems import DprecPlain, DprecPrivate, System
from dprec.cli.arguments import whole_number
from dprec_kernels.threads import of_threads

OPTIONS = ("threads",)  # of the command line
BASE = DprecPlain.name
CURVE = (OptimizerAlone, PlainPyTorch, DprecPlain, DprecPrivate)
ROUNDS = 9

# Median, spread and bounds give the quantiles of the training histories in these two data sets (cut to 200 and 50).
SHAPES = (
    Shape("MovieLens-1M", 3_416, users=128, tokens=4_096, median=94, spread=1.04, shortest=16, longest=200),
    Shape("Amazon Games", 23_715, users=256, tokens=512, median=5, spread=0.85, shortest=2, longest=50),
)
SMALL = (
    Shape("MovieLens-1M", 100, users=8, tokens=64, median=9, spread=1.0, shortest=2, longest=20),
    Shape("Amazon Games", 500, users=12, tokens=24, median=3, spread=0.8, shortest=1, longest=6),
)

CURVE_COLUMNS = {"items": "items", "system": "system", "peak_mb": "peak MB"}


def run(quick: bool, say: Callable[[str], None], threads: str | None = None) -> list[Row]:
    """Return a row for each shape and system, and those of the memory curve."""
    rows: list[Row] = []
    with of_threads(whole_number("threads", threads or "1")), MemoryMeter() as meter:
        for shape in SMALL if quick else SHAPES:
            rows += _comparison(shape, quick).rows(meter, say)
        rows += memory_curve(quick, meter, say)
    return rows


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison, its summary, and the memory curve."""
    compared = [row for row in rows if not _on_curve(row)]
    parts: list[Table | str] = [report.table(compared, COLUMNS, section="shape")]
    parts.append(
        "ratio: time against dprec non-private. in 16 GB: users of the longest history in one micro-batch. "
        f"Threads: {rows[0]['threads']}. {report.machine()}"
    )
    parts += [f"{row['shape']}, {row['system']}: {row['why_not']}" for row in rows if row["why_not"]]
    parts += [summary(compared, shape) for shape in dict.fromkeys(row["shape"] for row in compared)]
    curve = [row for row in rows if _on_curve(row)]
    parts.append(report.table(curve, CURVE_COLUMNS, "Peak memory of a step of the same tokens"))
    return Group(*parts)


picture = bars.panels


def summary(rows: Sequence[Row], shape: str) -> str:
    """One line: dprec against itself without privacy, and each model against the best peer that clips it correctly."""
    here = {row["system"]: row for row in rows if row["shape"] == shape}
    ours = here["dprec private"]
    line = f"{shape} ({ours['items']:,} items; {ours['batch']} users, {ours['tokens']:,} tokens a step): dprec private "
    if ours["ms_per_step"] is None:
        return line + "has no number"
    line += f"takes {ours['ratio']:.2f} × the time of dprec non-private"
    if ours["peak_mb"] and here[BASE]["peak_mb"]:
        line += f", {ours['peak_mb'] / here[BASE]['peak_mb']:.2f} × its memory"
    for ours in (here["dprec private"], here["dprec private, untied"]):
        peers = [r for r in here.values() if r["private"] and not r["system"].startswith("dprec")]
        able = [
            r for r in peers if r["ms_per_step"] is not None and (r["tied"], r["dim"]) == (ours["tied"], ours["dim"])
        ]
        for what, key, much in (("fastest", "ms_per_step", "time"), ("leanest", "peak_mb", "memory")):
            measured = [row for row in able if row[key] is not None]
            if measured and ours[key]:
                best = min(measured, key=lambda row: row[key])
                model = "tied" if ours["tied"] else "untied"
                line += f"; {what} {model} peer: {best['system']}, {best[key] / ours[key]:.2f} × dprec's {much}"
    return line


def memory_curve(quick: bool, meter: MemoryMeter, say: Callable[[str], None]) -> list[Row]:
    """Peak memory for growing catalogues and the same tokens: it shows whether a system stores tokens x items."""
    rows = []
    for items in (100, 1_000) if quick else (1_000, 10_000, 100_000, 1_000_000):
        shape = Shape(f"catalogue-{items}", items, users=8, tokens=256, median=32, spread=0, shortest=32, longest=32)
        comparison = _comparison(shape, quick)
        for kind in CURVE:
            say(f"{shape.name}: memory of {kind.name}")
            row = comparison.row(kind)
            row["peak_mb"], row["why_not"] = meter.peak_mb(comparison.job(kind))
            rows.append(row)
    return rows


def _comparison(shape: Shape, quick: bool) -> Comparison:
    return Comparison(
        TRANSFORMER, shape, SYSTEMS, BASE, partial(_width, quick), rounds=2 if quick else ROUNDS,
        turn=0.0 if quick else 0.5, at_once=(4, 12) if quick else (16, 48),
    )  # fmt: skip


def _width(quick: bool, kind: type[System]) -> int:
    # As in the paper: two tables of half the width hold as many numbers as the tied table.
    dim = 8 if quick else 64
    return dim if kind.tied else dim // 2


def _on_curve(row: Row) -> bool:
    return str(row["shape"]).startswith("catalogue-")
