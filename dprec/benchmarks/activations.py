"""DPFormer's Table 3: the variance that a Gaussian has after ReLU or GELU, by formula and from samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row
from dprec.models.networks import reattention
from dprec.reporting import figure

STDS = (0.01, 0.1, 1.0)  # of N(0, std): the table's second argument is no variance
SAMPLES = tuple(10**power for power in range(1, 7))
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "ReLU": (F.relu, reattention.through_relu),
    "GELU": (F.gelu, reattention.through_gelu),
}
PAPER = {0.01: "3.40e-5", 0.1: "0.0034", 1.0: "0.3408"}  # its analytic column, which is ReLU's for both


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each input and activation: a sample's variance for each size, and the formula's."""
    generator, rows = torch.Generator().manual_seed(0), []
    for std in STDS:
        for name, (activation, rule) in ACTIVATIONS.items():
            say(f"{name} of N(0, {std:g})")
            drawn = std * torch.randn(SAMPLES[-1], dtype=torch.float64, generator=generator)
            sampled = {str(many): float(activation(drawn[:many]).var()) for many in SAMPLES[: 3 if quick else None]}
            variance = torch.full((1, 1), std**2, dtype=torch.float64)
            analytic = float(rule(torch.zeros(1, 1, 1, dtype=torch.float64), variance))
            rows.append({"std": std, "activation": name, **sampled, "analytic": analytic, "paper": PAPER[std]})
    return rows


def table(rows: Sequence[Row]) -> Any:
    sizes = [key for key in rows[0] if key.isdigit()]
    columns = {"std": "N(0, ·)", "activation": "after", **{n: f"1e{len(n) - 1}" for n in sizes}}
    columns |= {"analytic": "formula", "paper": "paper's"}
    shown = [row | {key: f"{row[key]:.3g}" for key in (*sizes, "analytic")} for row in rows]
    return report.table(shown, columns, "variance after an activation: of so many samples, and by formula")


def picture(rows: Sequence[Row], file: Path) -> None:
    """A sample's variance over the formula's, against its size."""
    plt = figure.pyplot()
    drawn, panel = plt.subplots(figsize=(4.5, 3.4), layout="constrained")
    for row in rows:
        found = [(int(key), value / row["analytic"]) for key, value in row.items() if key.isdigit()]
        panel.plot(*zip(*found, strict=True), marker="o", markersize=3, label=f"{row['activation']}, {row['std']:g}")
    panel.axhline(1.0, color="#0f172a", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_xlabel("samples")
    panel.set_ylabel("variance over the formula's")
    figure.dress(panel)
    panel.legend(frameon=False, fontsize=7)
    figure.save(plt, drawn, file)
