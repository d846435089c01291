"""An audit on the screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dprec.privacy.guarantee import round_up


def show(report: Mapping[str, Any], console: Console) -> None:
    rows = report["systems"]
    console.print(promises(rows))
    console.print(exposures(rows))
    for line in notes(rows):
        console.print(line, soft_wrap=True, highlight=False)


def promises(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What is promised beside what is seen."""
    table = Table(box=SIMPLE_HEAD, title="ε promised, and at least (95 %)", title_justify="left", title_style="bold")
    table.add_column("system")
    columns = ("promised", "by sequences", "by gradients", "noise", "share", "repetition", "rows untouched", "steps")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        promised = row["promised_epsilon"]
        bounds = (row["empirical_epsilon"].get(view) for view in ("sequences", "gradients"))
        gauges = (row["gauges"].get(name) for name in ("noise", "share", "repetition"))
        planned = "" if row["steps"] == row["planned_steps"] else f" of {row['planned_steps']}"
        table.add_row(
            row["system"],
            "none" if promised is None else round_up(promised),
            *("" if bound is None else f"{bound['epsilon']:.2f}" for bound in bounds),
            *("" if gauge is None else f"{gauge['measured']:.3g} ± {gauge['error']:.1g}" for gauge in gauges),
            f"{sum(row['untouched_rows'].values()):,}",
            f"{row['steps']}{planned}",
            style="bold red" if row["breaches"] else None,
        )
    return table


def exposures(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Median bits by rank, then by fit, for each number of users who hold a secret."""
    title = "median exposure in bits by rank / by fit, of secrets that so many users hold"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column("system")
    for point in rows[0]["exposures"]:
        table.add_column(str(point["occurrences"]), justify="right")
    for row in rows:
        points = row["exposures"]
        cells = (f"{point['by_rank']['median']:.1f} / {point['by_fit']['median']:.1f}" for point in points)
        table.add_row(row["system"], *cells)
    return table


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What a reader must know to read the numbers, and every breach."""
    said = ["a secret that is not remembered has a median exposure of 1 bit; a lower bound on ε is no estimate of it"]
    for row in rows:
        bounded = [p for p in row["exposures"] if p["group_epsilon"] is not None]
        if bounded:
            parts = (f"{p['occurrences']}: ε {round_up(p['group_epsilon'])}, {p['at_most']:.1f} bits" for p in bounded)
            said.append(f"{row['system']} promises groups of so many users: {'; '.join(parts)} in the median at most")
        if row["steps"] < row["planned_steps"]:
            said.append(f"{row['system']} had time for {row['steps']} of {row['planned_steps']} steps; see --minutes")
        said += [f"BREACH, {row['system']}: {breach}" for breach in row["breaches"]]
    return said
