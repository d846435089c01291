"""EANA's studies: ε of its theorem, precision under its noises, and its task with three features of context."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dprec.auditing.picture import theorem
from dprec.benchmarks.common import figure, report
from dprec.benchmarks.eana_studies import bounds, context_log, precision
from dprec.cli.arguments import CommandLine
from dprec.errors import UserError


def bench(line: CommandLine, console: Console) -> None:
    """Compute or train what a study asks for, print its table, and write the requested files."""
    study, quick = line.take("study") or "theorem", "quick" in line.switches
    json_file, picture, runs = line.take("json"), line.take("picture"), line.take("runs")
    if picture:
        figure.pyplot()
    if study == "theorem":
        line.refuse_overrides()
        rows = bounds.rows()
        console.print(bounds.table(rows))
        if picture:
            theorem(Path(picture))
    elif study in ("precision", "context"):
        where = Path(runs or f"runs/eana-{study}{'-quick' if quick else ''}")
        rows = report.read_json(where) if where.suffix == ".json" else _trained(study, where, quick, line.words)
        console.print(precision.table(rows))
        if picture:
            precision.draw(rows, Path(picture))
    else:
        raise UserError(f"--study {study}: give theorem, precision or context")
    if json_file:
        report.write_json(rows, Path(json_file))


def _trained(study: str, runs: Path, quick: bool, words: Sequence[str]) -> list[report.Row]:
    tiny = precision.TINY if quick else ()
    if study == "precision":
        invented = precision.INVENTED if quick else ()
        return precision.trained(runs, [precision.RECIPE, *invented, *tiny, *words], precision.TABLES)
    log = context_log.written(runs, quick)
    return precision.trained(runs, [*context_log.settings(log), *tiny, *words], context_log.TABLES)
