"""The cost of clipping per user for a GRU and an LSTM on long histories, against torch's layers and Opacus's.

Without privacy both dprec and plain PyTorch run torch's `nn.GRU` and `nn.LSTM`. Opacus clips a tied table wrongly, so
it trains two tables of the same width: the arithmetic of a step is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from rich.console import Group
from rich.table import Table

from dprec.benchmarks.common import bars, report
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.peers.compare import COLUMNS, Comparison
from dprec.benchmarks.peers.memory import MemoryMeter
from dprec.benchmarks.peers.others import RECURRENT
from dprec.benchmarks.peers.shapes import Shape
from dprec.benchmarks.peers.systems import DprecPlain, DprecPrivate, System
from dprec_kernels.threads import one_thread

CELLS = ("GRU", "LSTM")
ROUNDS = 5


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each cell and system."""
    rows: list[Row] = []
    with one_thread(), MemoryMeter() as meter:
        for cell in CELLS:
            rows += _comparison(cell, quick).rows(meter, say)
    return rows


def table(rows: Sequence[Row]) -> Group:
    """Return the comparison and its summary."""
    columns = {key: heading for key, heading in COLUMNS.items() if key != "max_batch_16gb"} | {"tied": "tied"}
    parts: list[Table | str] = [report.table(rows, columns, section="shape")]
    parts.append(f"ratio: time against dprec non-private, which runs torch's own layer. One thread. {report.machine()}")
    parts += [f"{row['shape']}, {row['system']}: {row['why_not']}" for row in rows if row["why_not"]]
    parts += [summary(rows, shape) for shape in dict.fromkeys(row["shape"] for row in rows)]
    return Group(*parts)


picture = bars.panels


def summary(rows: Sequence[Row], shape: str) -> str:
    """One line: dprec against itself without privacy, and against the fastest peer that clips correctly."""
    here = [row for row in rows if row["shape"] == shape]
    ours = next(row for row in here if row["system"] == DprecPrivate.name)
    line = f"{shape} ({ours['items']:,} items; {ours['batch']} users, {ours['tokens']:,} tokens a step): dprec private "
    if ours["ratio"] is None:
        return f"{shape}: dprec private has no number: {ours['why_not']}"
    line += f"takes {ours['ratio']:.2f} × the time of dprec non-private"
    peers = [row for row in here if row["private"] and row is not ours and row["ms_per_step"] is not None]
    for row in sorted(peers, key=lambda row: row["ms_per_step"]):
        line += f"; {row['system']} takes {row['ms_per_step'] / ours['ms_per_step']:.2f} × dprec private's"
    return line


def _comparison(cell: str, quick: bool) -> Comparison:
    users, items, length = (4, 50, 6) if quick else (256, 3_416, 200)
    tokens = 2 * length if quick else 16_384  # the default of `data.tokens`
    shape = Shape(cell, items, users, tokens, median=length, spread=0.0, shortest=length, longest=length)
    return Comparison(
        cell, shape, RECURRENT, DprecPlain.name, partial(_width, quick), rounds=2 if quick else ROUNDS, turn=0.0
    )


def _width(quick: bool, kind: type[System]) -> int:
    return 8 if quick else 64
