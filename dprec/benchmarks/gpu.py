"""The kernels of a card: compiled for cards that are not here (`--compile`), or run on the one that is."""

from __future__ import annotations

from pathlib import Path

import torch
from rich.console import Console

from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row
from dprec.cli.arguments import CommandLine
from dprec.errors import UserError
from dprec_kernels import paths

SPILLED = 3000  # bytes that the softmax's kernels may spill: a card is faster with their tiles than with smaller ones
COMPILED = {
    "target": "target", "kernel": "kernel", "case": "case", "registers": "registers", "spilled": "spilled",
    "shared": "shared", "computed_ms": "computed ms",
}  # fmt: skip
MEASURED = {
    "kernel": {"name": "kernel", "millionths": "error, millionths", "right": "right"},
    "step": {
        "name": "step", "users": "users", "private_ms": "private ms", "plain_ms": "plain ms", "ratio": "ratio",
        "private_mb": "private MB", "plain_mb": "plain MB",
    },
    "largest batch": {"name": "largest batch", "users": "users"},
    "tables": {"name": "on tables", "rows": "rows", "records": "records", "ms": "ms", "ratio": "of SGD"},
}  # fmt: skip


SWITCHES = ("quick", "compile")


def bench(line: CommandLine, console: Console) -> None:
    """Compile or run, print the tables, and write the rows to the requested file."""
    json_file, quick = line.take("json"), "quick" in line.switches
    if line.take("picture") is not None:
        raise UserError("bench gpu draws no picture: leave --picture out, or take --json FILE")
    line.refuse_overrides()
    if not paths.TRITON:
        raise UserError("the kernels of a card need triton: pip install triton")
    with console.status("starting") as status:
        if "compile" in line.switches:
            from dprec.benchmarks.card import table

            found = table.rows(status.update, quick)
            tables = {"": COMPILED}
        else:
            from dprec.benchmarks.card import measured

            found = measured.rows(_card(), quick, status.update)
            tables = MEASURED
    if json_file:
        report.write_json(found, Path(json_file))
    for what, columns in tables.items():
        console.print(report.table([row for row in found if what in ("", row.get("what"))], columns))
    _refuse_wrong(found)


def _card() -> str:
    """Return the type of the device that kernels run on here."""
    here = torch.accelerator.current_accelerator()
    if here is None or here.type not in paths.CARDS or not torch.accelerator.is_available():
        raise UserError("there is no card on this machine: --compile shows what the kernels would take of one")
    return here.type


def _refuse_wrong(found: list[Row]) -> None:
    wrong = [row["name"] for row in found if row.get("right") is False]
    compiled = [row for row in found if "spilled" in row]
    spills = [row for row in compiled if row["spilled"] > _most_spilled(row["kernel"])]
    wrong += [f"{row['kernel']} ({row['case']}, {row['target']}) spills" for row in spills]
    if wrong:
        raise UserError(f"not as promised: {', '.join(wrong)}")


def _most_spilled(kernel: str) -> int:
    return SPILLED if kernel.startswith("catalogue_softmax") else 0
