"""Training day by day on generated clicks that drift: rows are chosen once, every day, or in every step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dprec.benchmarks.common import report
from dprec.benchmarks.common.outputs import Outputs
from dprec.benchmarks.common.sweep import Named, Point, Sweep, numbers
from dprec.benchmarks.sparsity_studies import periods
from dprec.cli.arguments import CommandLine
from dprec.errors import UserError

SETTINGS: tuple[str, ...] = (
    *("--data.dataset", "synthetic", "--data.synthetic_records", "200000", "--data.synthetic_drift", "0.3"),
    *("--data.days", "10", "--data.period_days", "1", "--data.period_passes", "4", "--data.batch_size", "2048"),
    *("--data.table_scale", "0.2", "--model.hidden", "[64]", "--model.final_rate", "1", "--model.warmup", "0.05"),
    *("--trainer.max_epochs", "1", "--trainer.check_val_every_n_epoch", "10"),
)
TINY: tuple[str, ...] = (
    *("--data.synthetic_records", "2000", "--data.table_scale", "0.01", "--data.batch_size", "100"),
    *("--data.period_passes", "1", "--trainer.enable_progress_bar", "false"),
)
COLOURS = {
    "DP-SGD": "#0f172a",
    "FEST, first day": "#7dd3fc",
    "FEST, all days": "#94a3b8",
    "FEST, running": "#0284c7",
    "AdaFEST": "#c2410c",
    "AdaFEST+, running": "#16a34a",
}
COUNTS = {"first day": "first", "all days": "all", "running": "running"}


def points(epsilons: Sequence[float]) -> list[Point]:
    """Return the points of the comparison."""
    found = []
    for epsilon in epsilons:
        settings: list[tuple[str, str, tuple[Named, ...]]] = [("DP-SGD", "", ())]
        settings += [
            (f"FEST, {name}", f"keep={keep}", (("FEST", {"keep": keep, "counts": counts}),))
            for keep in (500, 2_000)
            for name, counts in COUNTS.items()
        ]
        ada: list[Named] = [("AdaFEST", {"threshold": t, "noise_ratio": 2}) for t in (4, 6)]
        running: Named = ("FEST", {"keep": 2_000, "counts": "running"})
        for strategy in ada:
            knob = f"threshold={strategy[1]['threshold']}"
            settings += [("AdaFEST", knob, (strategy,)), ("AdaFEST+, running", knob, (running, strategy))]
        found += [Point(name, epsilon, knob, given) for name, knob, given in settings]
    return found


def bench(line: CommandLine, console: Console) -> None:
    """Train missing runs, print the table of a study, and write the requested files."""
    study = line.take("study") or "strategies"
    if study == "periods":
        _periods(line, console)
    elif study == "strategies":
        title = "training day by day on clicks that drift, tested on the last day"
        Sweep(title, "runs/stream", SETTINGS, TINY, points, (8.0,), COLOURS).show(line, console)
    else:
        raise UserError(f"--study {study}: give strategies or periods")


def _periods(line: CommandLine, console: Console) -> None:
    quick, outputs, only = "quick" in line.switches, Outputs(line), line.take("epsilons")
    runs = Path(line.take("runs") or f"runs/stream-periods{'-quick' if quick else ''}")
    outputs.check()
    wanted = numbers(only) if only else (8.0,) if quick else (1.0, 3.0, 8.0)
    rows = report.rows_of(runs, lambda folder: periods.trained(folder, wanted, quick, line.words))
    outputs.give(rows, console, [periods.table(rows)], periods.draw)
