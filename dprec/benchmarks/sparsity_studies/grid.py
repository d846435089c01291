"""AdaFEST's Figures 7 and 9: AUC and size of the gradient over σ₁/σ₂, τ and C₁."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dprec.benchmarks.common.report import Row
from dprec.benchmarks.common.sweep import Point
from dprec.reporting import figure

RATIOS = (0.1, 1.0, 2.0, 5.0, 10.0)
THRESHOLDS = (0.5, 1.0, 5.0, 10.0, 20.0, 50.0, 100.0)
LARGER = (5.0, 10.0)  # bounds of a contribution, at one ratio: 1 is the grid's
RATIO = 5.0
KEYS = ("auc", "gradient_size_reduction")


def points(epsilons: Sequence[float]) -> list[Point]:
    """Return the grid at C₁ = 1, the other C₁ at one ratio, and what all stand beside."""
    found = []
    for epsilon in epsilons:
        found.append(Point("DP-SGD", epsilon, ""))
        found += [_point(epsilon, ratio, threshold, 1.0) for ratio in RATIOS for threshold in THRESHOLDS]
        found += [_point(epsilon, RATIO, threshold, most) for most in LARGER for threshold in THRESHOLDS]
    return found


def draw(rows: Sequence[Row], file: Path, colours: object = None) -> None:
    """Two heat maps for each ε and C₁: AUC, and the factor by which fewer numbers get noise."""
    plt = figure.pyplot()
    cells = {(row["epsilon"], *_knobs(row["setting"])): row for row in rows if row["setting"]}
    panes = sorted({(epsilon, most) for epsilon, _, _, most in cells})
    drawn, panels = plt.subplots(2, len(panes), figsize=(4.4 * len(panes), 6), layout="constrained", squeeze=False)
    for column, (epsilon, most) in enumerate(panes):
        here = {(ratio, t): row for (e, ratio, t, c), row in cells.items() if (e, c) == (epsilon, most)}
        for key, panel in zip(KEYS, panels[:, column], strict=True):
            _heat(panel, here, key, [float(row[key]) for row in cells.values()])
        title = f"ε = {epsilon:g}, C₁ = {most:g}"
        panels[0][column].set_title(f"{title}: AUC", loc="left", fontsize=10, fontweight="bold")
        panels[1][column].set_title("times fewer numbers with noise", loc="left", fontsize=10, fontweight="bold")
    figure.save(plt, drawn, file)


def _heat(panel: Any, here: dict[tuple[float, float], Row], key: str, shown: Sequence[float]) -> None:
    """Draw one pane; its colours have the scale of all that are `shown`."""
    ratios, thresholds = sorted({r for r, _ in here}), sorted({t for _, t in here})
    values = [[float(here[r, t][key]) if (r, t) in here else float("nan") for t in thresholds] for r in ratios]
    scale = {"norm": "linear" if key == "auc" else "log", "vmin": min(shown), "vmax": max(shown)}
    panel.imshow(values, cmap="Oranges", aspect="auto", alpha=0.6, **scale)
    panel.set_xticks(range(len(thresholds)), [f"{t:g}" for t in thresholds])
    panel.set_yticks(range(len(ratios)), [f"{r:g}" for r in ratios])
    panel.set_xlabel("threshold τ")
    panel.set_ylabel("σ₁ / σ₂")
    text = "{:.3f}" if key == "auc" else "{:,.0f}"
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if value == value:
                panel.text(column, row, text.format(value), ha="center", va="center", fontsize=7)


def _point(epsilon: float, ratio: float, threshold: float, most: float) -> Point:
    given = {"threshold": threshold, "noise_ratio": ratio, "max_contribution": most}
    setting = f"ratio={ratio:g} threshold={threshold:g} most={most:g}"
    return Point("AdaFEST", epsilon, setting, (("AdaFEST", given),))


def _knobs(setting: str) -> tuple[float, float, float]:
    """
    >>> _knobs("ratio=5 threshold=0.5 most=1")
    (5.0, 0.5, 1.0)
    """
    ratio, threshold, most = (float(word.partition("=")[2]) for word in setting.split())
    return ratio, threshold, most
