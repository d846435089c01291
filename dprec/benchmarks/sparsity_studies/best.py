"""AdaFEST's Figure 3: the best reduction of each strategy that loses no more AUC than a given threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from dprec.benchmarks.common import report, sweep
from dprec.benchmarks.common.report import Row
from dprec.reporting import figure

LOSSES = (0.001, 0.005, 0.01, 0.02)


def best_reductions(rows: Sequence[Row], losses: Sequence[float] = LOSSES) -> list[Row]:
    """Return, for each ε, strategy and threshold, the largest reduction within it, None where no setting is.

    >>> points = [{"epsilon": 1.0, "system": "FEST", "auc_loss": loss, "gradient_size_reduction": times}
    ...           for loss, times in ((0.004, 30.0), (0.0, 9.0), (0.03, 99.0))]
    >>> [row["gradient_size_reduction"] for row in best_reductions(points, (-1.0, 0.001, 0.005))]
    [None, 9.0, 30.0]
    """
    found: list[Row] = []
    for epsilon, system in dict.fromkeys((row["epsilon"], row["system"]) for row in rows):
        own = [row for row in rows if (row["epsilon"], row["system"]) == (epsilon, system)]
        for loss in losses:
            within = [row["gradient_size_reduction"] for row in own if row["auc_loss"] <= loss]
            best = max(within, default=None)
            found.append({"epsilon": epsilon, "system": system, "loss": loss, "gradient_size_reduction": best})
    return found


def table(rows: Sequence[Row]) -> Table:
    """Return the best reductions, a column for each threshold."""
    lines: dict[tuple[float, str], Row] = {}
    for row in best_reductions(rows):
        line = lines.setdefault((row["epsilon"], row["system"]), {"epsilon": row["epsilon"], "system": row["system"]})
        line[f"{row['loss']:g}"] = row["gradient_size_reduction"]
    columns = {"epsilon": "ε", "system": "strategy", **{f"{loss:g}": f"AUC lost ≤ {loss:g}" for loss in LOSSES}}
    return report.table(list(lines.values()), columns, "best reduction within a loss of AUC below DP-SGD")


def draw(rows: Sequence[Row], file: Path, colours: Mapping[str, str]) -> None:
    """A column for each ε: AUC against the reduction, and below it the best reduction against the AUC lost."""
    plt = figure.pyplot()
    epsilons = sorted({row["epsilon"] for row in rows})
    drawn, panels = plt.subplots(
        2, len(epsilons), figsize=(4 * len(epsilons), 6.6), sharey="row", squeeze=False, layout="constrained"
    )
    sweep.panels_of(rows, panels[0], epsilons, colours)
    for panel, epsilon in zip(panels[1], epsilons, strict=True):
        _best([row for row in rows if row["epsilon"] == epsilon], panel, colours)
    panels[1][0].set_ylabel("times fewer numbers, at best")
    figure.save(plt, drawn, file)


def _best(rows: Sequence[Row], panel: Any, colours: Mapping[str, str]) -> None:
    best = best_reductions(rows)
    for system, colour in colours.items():
        found = [
            (row["loss"], row["gradient_size_reduction"])
            for row in best
            if row["system"] == system != "DP-SGD" and row["gradient_size_reduction"] is not None
        ]
        if found:
            panel.plot(*zip(*found, strict=True), color=colour, marker="o", markersize=4)
    panel.set_yscale("log")
    panel.set_xlabel("AUC lost, at most")
    figure.dress(panel)
