"""The savings of each strategy for tables and its cost in accuracy: AdaFEST's comparison, on generated clicks."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from dprec.benchmarks.common.outputs import Outputs
from dprec.benchmarks.common.sweep import Named, Point, Sweep
from dprec.benchmarks.sparsity_studies import best, features, grid
from dprec.cli.arguments import CommandLine
from dprec.cli.parser import parse
from dprec.errors import UserError

RECIPE = "recipes/criteo_dpsgd.yaml"
BATCH = ("--data.batch_size", "2048")  # of the study of features, as in the paper
RANKS = (1, 4)  # numbers of an id; its vector has up to 63
# Large tables and a small network: a run takes minutes.
SETTINGS: tuple[str, ...] = (
    *("--data.dataset", "synthetic", "--data.synthetic_records", "500000", "--data.batch_size", "8192"),
    *("--model.hidden", "[128]", "--trainer.max_epochs", "4", "--trainer.check_val_every_n_epoch", "10"),
)
TINY: tuple[str, ...] = (
    *("--data.synthetic_records", "7000", "--data.table_scale", "0.01", "--data.batch_size", "1000"),
    *("--trainer.max_epochs", "1", "--trainer.enable_progress_bar", "false"),
)
COLOURS = {
    "DP-SGD": "#0f172a",
    "FEST": "#0284c7",
    "AdaFEST": "#c2410c",
    "AdaFEST+": "#16a34a",
    "exponential": "#a855f7",
    "low rank": "#64748b",
}


def points(epsilons: Sequence[float]) -> list[Point]:
    """Return the points of the comparison."""
    found = []
    for epsilon in epsilons:
        ada: dict[int, Named] = {t: ("AdaFEST", {"threshold": t, "noise_ratio": 2}) for t in (4, 6, 8, 12, 25)}
        settings: dict[tuple[str, str], tuple[Named, ...]] = {
            ("DP-SGD", ""): (),
            **{("FEST", f"keep={n}"): (("FEST", {"keep": n}),) for n in (100, 1_000, 10_000, 100_000)},
            **{("AdaFEST", f"threshold={t}"): (ada[t],) for t in (6, 8, 12, 25)},
            **{("AdaFEST+", f"threshold={t}"): (("FEST", {"keep": 2_000}), ada[t]) for t in (4, 6, 8)},
            **{
                ("exponential", f"keep={n}"): (("ExponentialSelection", {"keep": n, "noise_ratio": 1, "max_norm": 20}),)
                for n in (100, 1_000)
            },
        }
        found += [Point(name, epsilon, knob, given) for (name, knob), given in settings.items()]
        found += [Point("low rank", epsilon, f"rank={rank}", low_rank=rank) for rank in RANKS]
    return found


def bench(line: CommandLine, console: Console) -> None:
    """Train missing runs, print the table of a study, and write the requested files."""
    study = line.take("study") or "strategies"
    if study == "features":
        _features(line, console)
    elif study == "grid":
        title = "AdaFEST over its hyper-parameters, generated clicks"
        Sweep(title, "runs/sparsity-grid", SETTINGS, TINY, grid.points, (1.0,), COLOURS, grid.draw).show(line, console)
    elif study == "strategies":
        title = "accuracy against size of the tables' gradients, generated clicks"
        whole = Sweep(title, "runs/sparsity", SETTINGS, TINY, points, (1.0, 3.0, 8.0), COLOURS, best.draw, best.table)
        whole.show(line, console)
    else:
        raise UserError(f"--study {study}: give strategies, grid or features")


def _features(line: CommandLine, console: Console) -> None:
    quick, outputs = "quick" in line.switches, Outputs(line)
    outputs.check()
    settings = parse(CommandLine.read([RECIPE, *SETTINGS, *BATCH, *(TINY if quick else ()), *line.words]))
    with console.status("reading") as status:
        rows = features.measure(settings.make("data"), 2 if quick else features.STEPS, status.update)
    outputs.give(rows, console, [features.table(rows)], features.picture)
