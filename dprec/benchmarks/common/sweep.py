"""Runs that differ in one strategy's knob, side by side.

Every point is a run of a recipe, kept in a folder: a missing run is trained, a finished one is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, RenderableType

from dprec.benchmarks.common import report
from dprec.benchmarks.common.finish import finish
from dprec.benchmarks.common.outputs import Outputs
from dprec.benchmarks.common.report import Row
from dprec.cli.arguments import CommandLine
from dprec.errors import UserError
from dprec.reporting import figure

COLUMNS = {
    "epsilon": "ε",
    "system": "strategy",
    "setting": "setting",
    "auc": "AUC",
    "auc_loss": "below DP-SGD",
    "gradient_size_reduction": "reduction",
    "rows_noised": "rows",
    "seconds": "s",
}

Named = tuple[str, Mapping[str, Any]]  # a strategy and its arguments


@dataclass(frozen=True)
class Point:
    """A strategy with one setting of its knob, at one ε."""

    system: str
    epsilon: float
    setting: str
    strategies: tuple[Named, ...] = ()
    low_rank: int | None = None

    @property
    def overrides(self) -> list[str]:
        named = [{"class_path": f"dprec.sparsity.{name}", "init_args": given} for name, given in self.strategies]
        given = ["--privacy.epsilon", f"{self.epsilon:g}", "--privacy.sparsity", json.dumps(named)]
        return given if self.low_rank is None else [*given, "--model.low_rank", str(self.low_rank)]

    def folder(self, runs: Path) -> Path:
        words = [self.system.lower().replace(" ", "-"), f"{self.epsilon:g}", *self.setting.split()]
        return runs / "_".join(words).replace("=", "-").replace(",", "")


@dataclass(frozen=True)
class Sweep:
    """Points that share all other settings."""

    title: str
    runs: str
    settings: tuple[str, ...]
    tiny: tuple[str, ...]
    points: Callable[[Sequence[float]], list[Point]]
    epsilons: Sequence[float]
    colours: Mapping[str, str]
    drawn: Callable[[Sequence[Row], Path, Mapping[str, str]], None] | None = None  # in place of `draw`
    below: Callable[[Sequence[Row]], RenderableType] | None = None  # what follows from the rows, printed under them

    def show(self, line: CommandLine, console: Console) -> None:
        """Train missing runs, or read the rows of a file, print the table, and write the requested files."""
        quick = "quick" in line.switches
        runs = Path(line.take("runs") or (f"{self.runs}-quick" if quick else self.runs))
        outputs, only = Outputs(line), line.take("epsilons")
        outputs.check()
        wanted = numbers(only) if only else self.epsilons[-1:] if quick else self.epsilons
        rows = report.rows_of(runs, partial(self._trained, line, wanted, quick))
        shown = [row | {key: f"{row[key]:.4f}" for key in ("auc", "auc_loss")} for row in rows]
        tables = [report.table(shown, COLUMNS, self.title), *([self.below(rows)] if self.below else ())]
        drawn = self.drawn or draw
        outputs.give(rows, console, tables, lambda found, file: drawn(found, file, self.colours))

    def _trained(self, line: CommandLine, epsilons: Sequence[float], quick: bool, runs: Path) -> list[Row]:
        rows = []
        for point in self.points(epsilons):
            folder, tiny = point.folder(runs), self.tiny if quick else ()
            finish(folder, ["recipes/criteo_dpsgd.yaml", *self.settings, *tiny, *point.overrides, *line.words])
            rows.append(_row(point, folder))
        dense = {row["epsilon"]: row for row in rows if row["system"] == "DP-SGD"}
        for row in rows:
            row["auc_loss"] = dense[row["epsilon"]]["auc"] - row["auc"]
            if row["gradient_size_reduction"] is None:
                row["gradient_size_reduction"] = dense[row["epsilon"]]["numbers"] / row["numbers"]
        return rows


def draw(rows: Sequence[Row], file: Path, colours: Mapping[str, str]) -> None:
    """AUC against the factor by which fewer numbers get noise, a panel for each ε."""
    plt = figure.pyplot()
    epsilons = sorted({row["epsilon"] for row in rows})
    drawn, panels = plt.subplots(
        1, len(epsilons), figsize=(4 * len(epsilons), 3.6), sharey=True, squeeze=False, layout="constrained"
    )
    panels_of(rows, panels[0], epsilons, colours)
    figure.save(plt, drawn, file)


def panels_of(
    rows: Sequence[Row], panels: Sequence[Any], epsilons: Sequence[float], colours: Mapping[str, str]
) -> None:
    """Draw a panel for each ε, and the legend in the last."""
    for panel, epsilon in zip(panels, epsilons, strict=True):
        for system, colour in colours.items():
            found = sorted(
                (row["gradient_size_reduction"], row["auc"])
                for row in rows
                if row["system"] == system and row["epsilon"] == epsilon
            )
            if system == "DP-SGD":
                panel.axhline(found[0][1], color=colour, linewidth=1, label=system)
                panel.axhspan(found[0][1] - 0.005, found[0][1], color=colour, alpha=0.08)
            elif found:
                panel.plot(*zip(*found, strict=True), color=colour, marker="o", markersize=4, label=system)
        panel.set_xscale("log")
        figure.dress(panel, f"ε = {epsilon:g}")
        panel.set_xlabel("times fewer numbers with noise")
    panels[0].set_ylabel("AUC on held-out records")
    panels[-1].legend(frameon=False, fontsize=8)


def _row(point: Point, folder: Path) -> Row:
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    saved = metrics.get("sparsity", {"rows_noised": None, "gradient_size_reduction": None})
    weights = torch.load(folder / "checkpoints" / "last.ckpt", map_location="meta", weights_only=True)["state_dict"]
    return {
        "epsilon": point.epsilon,
        "system": point.system,
        "setting": point.setting,
        "auc": metrics["auc"],
        "gradient_size_reduction": saved["gradient_size_reduction"],
        "rows_noised": saved["rows_noised"],
        "numbers": sum(weight.numel() for name, weight in weights.items() if name.startswith("tables.")),
        "seconds": metrics["seconds"],
    }


def numbers(text: str) -> list[float]:
    """The budgets that --epsilons names."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise UserError(f"--epsilons {text}: give numbers such as 1,3,8") from None
