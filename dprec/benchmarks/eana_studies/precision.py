"""EANA's Figure 4: precision@k of SGD, DP-SGD and EANA with small noises. Runs are kept in folders."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from dprec.benchmarks.common import report
from dprec.benchmarks.common.finish import finish
from dprec.benchmarks.common.report import Row
from dprec.reporting import figure

RECIPE = "recipes/movielens20m_dual_encoder_paper_sgd.yaml"
TABLES = ("embedding*", "own_context*")
PLACES = (1, 5, 10, 20)
NOISES = (0.01, 0.001)
INVENTED = ("--data.dataset", "synthetic", "--data.synthetic_users", "120", "--data.synthetic_items", "50")
TINY = ("--data.batch_size", "20", "--trainer.max_steps", "2", "--trainer.enable_progress_bar", "false")
COLUMNS = {"system": "system", "noise": "noise", **{f"precision@{k}": f"@{k}" for k in PLACES}, "steps": "steps"}


def systems(tables: Sequence[str]) -> dict[str, tuple[float | None, list[str]]]:
    """Return each system's noise multiplier, and the overrides that make it of the run without privacy."""
    found: dict[str, tuple[float | None, list[str]]] = {"SGD": (None, [])}
    placed = [{"class_path": "dprec.sparsity.EANA", "init_args": {"tables": list(tables)}}]
    for noise in NOISES:
        private = ["--privacy.noise_multiplier", f"{noise:g}", "--privacy.clipping", "flat", "--privacy.max_norm", "1"]
        found[f"DP-SGD {noise:g}"] = (noise, private)
        found[f"EANA {noise:g}"] = (noise, [*private, "--privacy.sparsity", json.dumps(placed)])
    return found


def trained(runs: Path, recipe: Sequence[str], tables: Sequence[str]) -> list[Row]:
    """Return a row for each system; missing runs are trained first, and stopped ones are continued."""
    rows: list[Row] = []
    for system, (noise, overrides) in systems(tables).items():
        folder = runs / system.lower().replace(" ", "-")
        finish(folder, [*recipe, *overrides])
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        found = {f"precision@{k}": metrics[f"precision@{k}"] for k in PLACES}
        more = {key: metrics[key] for key in ("steps", "seconds", "stand_in")}
        rows.append({"system": system.split()[0], "noise": noise, **found, **more})
    return rows


def table(rows: Sequence[Row]) -> Table:
    keys = [f"precision@{k}" for k in PLACES]
    shown = [
        row
        | {key: f"{100 * row[key]:.2f}" for key in keys}
        | {"noise": "" if row["noise"] is None else f"{row['noise']:g}"}
        for row in rows
    ]
    where = "generated data" if rows[0]["stand_in"] else "held-out users"
    return report.table(shown, COLUMNS, f"precision in % on {where}")


def draw(rows: Sequence[Row], file: Path) -> None:
    """Precision against the number of places, a line for each system."""
    plt = figure.pyplot()
    drawn, panel = plt.subplots(figsize=(4.5, 3.4), layout="constrained")
    colours = {"SGD": "#0f172a", "DP-SGD": figure.PRIVATE, "EANA": figure.DPREC}
    for row in rows:
        style = ":" if row["noise"] == max(NOISES) else "-"
        values = [100 * row[f"precision@{k}"] for k in PLACES]
        name = row["system"] if row["noise"] is None else f"{row['system']}, {row['noise']:g}"
        panel.plot(PLACES, values, color=colours[row["system"]], linestyle=style, marker="o", markersize=4, label=name)
    panel.set_xlabel("k")
    panel.set_ylabel("precision@k, %")
    figure.dress(panel)
    panel.legend(frameon=False, fontsize=8)
    figure.save(plt, drawn, file)
