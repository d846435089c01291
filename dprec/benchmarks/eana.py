"""EANA's studies: ε of its theorem, precision under its noises, and its task with three features of context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dprec.benchmarks.common import report
from dprec.benchmarks.common.outputs import Outputs
from dprec.benchmarks.eana_studies import bounds, context_log, precision
from dprec.cli.arguments import CommandLine
from dprec.errors import UserError


def bench(line: CommandLine, console: Console) -> None:
    """Compute or train what a study asks for, print its table, and write the requested files."""
    study, quick = line.take("study") or "theorem", "quick" in line.switches
    outputs, runs = Outputs(line), line.take("runs")
    outputs.check()
    if study == "theorem":
        if runs is not None:
            raise UserError("--runs: the study theorem trains nothing: leave it out")
        line.refuse_overrides()
        rows = bounds.rows()
        outputs.give(rows, console, [bounds.table(rows)], lambda _, file: bounds.picture(file))
    elif study in ("precision", "context"):
        where = Path(runs or f"runs/eana-{study}{'-quick' if quick else ''}")
        rows = report.rows_of(where, lambda folder: _trained(study, folder, quick, line.words))
        outputs.give(rows, console, [precision.table(rows)], precision.draw)
    else:
        raise UserError(f"--study {study}: give theorem, precision or context")


def _trained(study: str, runs: Path, quick: bool, words: Sequence[str]) -> list[report.Row]:
    tiny = precision.TINY if quick else ()
    if study == "precision":
        invented = precision.INVENTED if quick else ()
        return precision.trained(runs, [precision.RECIPE, *invented, *tiny, *words], precision.TABLES)
    log = context_log.written(runs, quick)
    return precision.trained(runs, [*context_log.settings(log), *tiny, *words], context_log.TABLES)
