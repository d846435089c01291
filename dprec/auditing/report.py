"""Reports of an audit: tables, and a figure of exposure against occurrences, after EANA's Figure 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from dprec.reporting.figure import DPREC, dress, pyplot, save
from dprec.sparsity.revealed import lines

USELESS = 20.0  # an ε above this is not compared with the bound by guesses
MISFIT = 0.05  # of a distribution function: a fit with a larger error is not trusted
GAUGES = {"noise": "noise, promised: 1", "share": "a user's effect, bound: 1", "repetition": "repeated noise, none: 0"}


def show(report: Mapping[str, Any], console: Console) -> None:
    rows = report["systems"]
    console.print(promises(rows))
    for way in ("by_rank", "by_fit"):
        console.print(exposures(rows, way))
    for line in notes(rows):
        console.print(line, soft_wrap=True)


def promises(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of promised and measured values, with a column for each system."""
    table = _columns("what is promised and what is measured", rows)
    table.add_row(
        "ε promised", *("none" if r["promised_epsilon"] is None else _short(r["promised_epsilon"]) for r in rows)
    )
    there = min(row["audited_delta"] for row in rows)
    table.add_row(
        f"ε promised at δ = {there:.0e}", *(_promise(r["promised_there"], r["promised_epsilon"]) for r in rows)
    )
    for view in ("sequences", "gradients"):
        bounds = (row["empirical_epsilon"].get(view) for row in rows)
        table.add_row(f"ε at least, by {view}", *("" if b is None else f"{b['epsilon']:.2f}" for b in bounds))
    table.add_row("the most such a bound can show", *(f"{_reach(row):.2f}" for row in rows))
    for name, meaning in GAUGES.items():
        gauges = (row["gauges"].get(name) for row in rows)
        table.add_row(meaning, *("" if g is None else f"{_ratio(g):.3f} ± {_error(g):.3f}" for g in gauges))
    table.add_row("rows never touched", *(f"{sum(row['untouched_rows'].values()):,}" for row in rows))
    table.add_row("steps", *(f"{row['steps']:,} of {row['planned_steps']:,}" for row in rows))
    return table


def exposures(rows: Sequence[Mapping[str, Any]], way: str) -> Table:
    """Return a table of each system's median bits, with a column for each number of users who hold a secret."""
    title = f"median exposure, {way.replace('_', ' ')}, over the users who hold it"
    table = _table(title)
    for point in rows[0]["exposures"]:
        table.add_column(str(point["occurrences"]), justify="right")
    for row in rows:
        bits = (_short(point[way]["median"]) for point in row["exposures"])
        table.add_row(row["system"], *bits, style="bold red" if row["breaches"] else None)
    return table


def _columns(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(title)
    for row in rows:
        table.add_column(row["system"], justify="right", style="bold red" if row["breaches"] else None)
    return table


def _table(title: str) -> Table:
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", padding=(0, 0, 0, 1))
    table.add_column("")
    return table


def _short(value: float) -> str:
    return f"{value:.2e}" if value >= 1e4 else f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _promise(epsilon: float | None, promised: float | None) -> str:
    return "none" if epsilon is None or promised is None else _short(epsilon)


def _reach(row: Mapping[str, Any]) -> float:
    return max((bound["reach"] for bound in row["empirical_epsilon"].values()), default=0.0)


def _ratio(gauge: Mapping[str, Any]) -> float:
    """Return measured over promised; the measured value if 0 is promised."""
    return gauge["measured"] / (gauge["promised"] or 1.0)


def _error(gauge: Mapping[str, Any]) -> float:
    return gauge["error"] / (gauge["promised"] or 1.0)


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return notes on the numbers, and every breach."""
    said = [
        f"{rows[0]['canaries']:,} of {rows[0]['users']:,} users are canaries; rate, noise and δ are for this number",
        "a secret that the model did not learn has a median exposure of 1 bit; a lower bound on ε is not an estimate",
    ]
    for row in rows:
        name, there = row["system"], row["promised_there"]
        if there is None and row["gauges"]:
            said.append(f"{name} promises nothing: its gauges show how it differs from DP-SGD")
            said += lines(row.get("revealed") or {})
        elif there is not None and row["empirical_epsilon"] and _reach(row) < there < USELESS:
            said.append(f"{name}: with so few canaries guesses cannot contradict ε = {_short(there)}, only gauges can")
        if row["misfit"] > MISFIT:
            said.append(f"{name}: the fitted distribution is off by {row['misfit']:.2f}: trust only the ranks")
        if row["steps"] < row["planned_steps"]:
            said.append(f"{row['system']} had time for {row['steps']} of {row['planned_steps']} steps; see --minutes")
        said += [f"BREACH, {row['system']}: {breach}" for breach in row["breaches"]]
    return said


COLOURS = ("#0f172a", "#64748b", "#0284c7", "#15803d", "#a16207", "#7e22ce")
STYLES = ("-", ":", "-.")
TRUSTED = 3.0  # times the bits that ranks can show: beyond this, a fit only says "more"
WAYS = {"by_rank": "by rank (interpolation)", "by_fit": "by a fitted distribution (extrapolation)"}


def draw_exposures(rows: Sequence[Mapping[str, Any]], references: int, file: Path) -> None:
    """Median and quartiles of the exposure, a line for each system."""
    plt = pyplot()
    drawn, panels = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for panel, (way, title) in zip(panels, WAYS.items(), strict=True):
        for row, look in zip(rows, _looks([row["system"] for row in rows]), strict=True):
            points, colour = row["exposures"], look["color"]
            x = [point["occurrences"] for point in points]
            panel.plot(x, [p[way]["median"] for p in points], marker="o", ms=4, label=row["system"], **look)
            quartiles = ([point[way][end] for point in points] for end in ("lower", "upper"))
            panel.fill_between(x, *quartiles, color=colour, alpha=0.06, linewidth=0)
        panel.axhline(1.0, color="#94a3b8", linewidth=0.8)
        panel.set_ylim(0, (1.05 if way == "by_rank" else TRUSTED) * np.log2(references))
        panel.set_xscale("log")
        panel.set_xticks(x, [str(count) for count in x], minor=False)
        panel.minorticks_off()
        dress(panel, f"Exposure {title}")
        panel.set_xlabel("users who hold the secret")
    panels[0].set_ylabel("bits; 1 is the median of a secret that was never seen")
    panels[0].legend(frameon=False, fontsize=8)
    save(plt, drawn, file)


def _looks(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a colour for each way to train and a line style for each of its noises; the recipe is highlighted.

    >>> [tuple(look.values()) for look in _looks(["no privacy", "EANA 0.1", "EANA 0.01", "epsilon 8"])][1:3]
    [('#64748b', '-'), ('#64748b', ':')]
    """
    families = [name.rpartition(" ")[0] for name in names]
    distinct = list(dict.fromkeys(families))
    looks = []
    for place, family in enumerate(families):
        recipe = place == len(names) - 1 and len(names) > 1
        colour = DPREC if recipe else COLOURS[distinct.index(family) % len(COLOURS)]
        looks.append({"color": colour, "linestyle": STYLES[families[:place].count(family) % len(STYLES)]})
    return looks
