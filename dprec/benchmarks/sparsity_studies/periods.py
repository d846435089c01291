"""AdaFEST's Table 5: AUC by streaming period and ε, by DP-SGD and without privacy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from dprec.benchmarks.common import report
from dprec.benchmarks.common.finish import finish
from dprec.benchmarks.common.report import Row
from dprec.reporting import figure

RECIPE = "recipes/criteo_time_series_dpsgd.yaml"
PERIODS = (1, 2, 4, 8, 16, 18)  # days, of 18 for training, as in the paper
# Days as many as in the paper, with as few records and as small tables as `stream` has.
SETTINGS: tuple[str, ...] = (
    *("--data.dataset", "synthetic", "--data.synthetic_records", "200000", "--data.synthetic_drift", "0.3"),
    *("--data.days", "24", "--data.test_days", "6", "--data.batch_size", "2048", "--data.table_scale", "0.2"),
    *("--model.hidden", "[64]", "--trainer.check_val_every_n_epoch", "10"),
)
TINY: tuple[str, ...] = (
    *("--data.synthetic_records", "3000", "--data.table_scale", "0.01", "--data.batch_size", "100"),
    *("--data.period_passes", "1", "--trainer.enable_progress_bar", "false"),
)
# ε -> AUC at each streaming period, in the paper; None: without privacy.
PAPER: Mapping[float | None, Sequence[float]] = {
    1.0: (0.7313, 0.7313, 0.7314, 0.7316, 0.7318, 0.7320),
    3.0: (0.7323, 0.7324, 0.7326, 0.7328, 0.7331, 0.7332),
    8.0: (0.7345, 0.7346, 0.7352, 0.7352, 0.7356, 0.7358),
    None: (0.7846, 0.7848, 0.7847, 0.7820, 0.7848, 0.7848),
}


@dataclass(frozen=True)
class Cell:
    """A streaming period of so many days, at one ε or without privacy."""

    days: int
    epsilon: float | None

    @property
    def overrides(self) -> list[str]:
        private = ["--privacy", "null"] if self.epsilon is None else ["--privacy.epsilon", f"{self.epsilon:g}"]
        return ["--data.period_days", str(self.days), *private]

    def folder(self, runs: Path) -> Path:
        return runs / f"period-{self.days}_{'no-privacy' if self.epsilon is None else f'{self.epsilon:g}'}"


def trained(runs: Path, epsilons: Sequence[float], quick: bool, words: Sequence[str]) -> list[Row]:
    """Return a row for each cell; missing runs are trained first, and stopped ones are continued."""
    rows: list[Row] = []
    for days in PERIODS[:: len(PERIODS) - 1] if quick else PERIODS:
        for cell in [Cell(days, epsilon) for epsilon in (*epsilons, None)]:
            folder = cell.folder(runs)
            finish(folder, [RECIPE, *SETTINGS, *(TINY if quick else ()), *cell.overrides, *words])
            metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
            found = {"auc": metrics["auc"], "steps": metrics["steps"], "seconds": metrics["seconds"]}
            rows.append({"period_days": days, "epsilon": cell.epsilon, "paper": _paper(cell), **found})
    return rows


def table(rows: Sequence[Row]) -> Table:
    """Return AUC and the paper's, a line for each period."""
    lines: dict[int, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["period_days"], {"days": row["period_days"]})
        known = "" if row["paper"] is None else f" ({row['paper']:.4f})"
        line[_name(row["epsilon"])] = f"{row['auc']:.4f}{known}"
    names = dict.fromkeys(_name(row["epsilon"]) for row in rows)
    columns = {"days": "period, days", **{name: name for name in names}}
    return report.table(list(lines.values()), columns, "AUC by streaming period, generated clicks (paper, Criteo)")


def draw(rows: Sequence[Row], file: Path) -> None:
    """AUC against the streaming period, a line for each ε."""
    plt = figure.pyplot()
    drawn, panel = plt.subplots(figsize=(4.5, 3.4), layout="constrained")
    for epsilon in dict.fromkeys(row["epsilon"] for row in rows):
        found = [(row["period_days"], row["auc"]) for row in rows if row["epsilon"] == epsilon]
        colour = figure.PLAIN if epsilon is None else None
        panel.plot(*zip(*found, strict=True), marker="o", markersize=4, color=colour, label=_name(epsilon))
    panel.set_xlabel("streaming period, days")
    panel.set_ylabel("AUC on the days after")
    figure.dress(panel)
    panel.legend(frameon=False, fontsize=8)
    figure.save(plt, drawn, file)


def _paper(cell: Cell) -> float | None:
    return PAPER[cell.epsilon][PERIODS.index(cell.days)] if cell.epsilon in PAPER else None


def _name(epsilon: float | None) -> str:
    return "no privacy" if epsilon is None else f"ε = {epsilon:g}"
