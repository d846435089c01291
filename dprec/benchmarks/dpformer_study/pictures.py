"""Pictures after the paper's figures 2, 6 and 7, drawn from the runs."""

from __future__ import annotations

import re
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dprec.benchmarks.common.report import Row
from dprec.benchmarks.dpformer_study.cells import DATA, EPSILONS, MODELS, PAPER
from dprec.benchmarks.dpformer_study.tables import belongs
from dprec.reporting.figure import DPREC, PRIVATE, dress, pyplot, save

BARS = ("discriminant", "spectral_former", "spectral", "dpformer", "transformer", "transformer_untied", "gru", "lstm")
CURVES = {"dpformer": ("with Re-Attention", DPREC), "transformer": ("without", PRIVATE)}


def bars(rows: Sequence[Row], file: Path) -> None:
    """NDCG@10 of each model at each ε, with the paper's as a line across the bar."""
    plt = pyplot()
    drawn, panels = plt.subplots(1, len(DATA), figsize=(12, 3.8), layout="constrained")
    for panel, (data, name) in zip(panels, DATA.items(), strict=True):
        for place, model in enumerate(BARS):
            for number, epsilon in enumerate(EPSILONS):
                at = place + 0.27 * (number - 1)
                found = [100 * r["ndcg@10"] for r in rows if belongs(r, data, model, epsilon)]
                if found:
                    colour = DPREC if model in ("discriminant", "spectral_former", "dpformer") else PRIVATE
                    panel.bar(at, statistics.mean(found), width=0.25, color=colour, alpha=0.5 + 0.25 * number)
                if (model, data) in PAPER:
                    panel.hlines(PAPER[model, data][number][0], at - 0.125, at + 0.125, color="#0f172a", linewidth=1.5)
        panel.set_xticks(range(len(BARS)), [_wrapped(MODELS[m]) for m in BARS], fontsize=8)
        dress(panel, name)
    panels[0].set_ylabel("NDCG@10 (%) at ε = 5, 8, 10; line: the paper")
    save(plt, drawn, file)


def _wrapped(name: str) -> str:
    """Return a name in lines that fit below a bar.

    >>> _wrapped("SpectralFormer"), _wrapped("Transformer, untied")
    ('Spectral-\\nFormer', 'Trans-\\nformer,\\nuntied')
    """
    return textwrap.fill(re.sub("(?i)(former)", r"- \1", name), 9)


def curves(rows: Sequence[Row], file: Path) -> None:
    """NDCG@10 and HIT@10 during training with and without Re-Attention: mean and range over seeds."""
    plt = pyplot()
    drawn, lines = plt.subplots(2, len(DATA) * 2, figsize=(12, 6), layout="constrained", sharex="col")
    panes = [(data, epsilon) for data in DATA for epsilon in (EPSILONS[0], EPSILONS[-1])]
    for panels, metric in zip(lines, ("ndcg@10", "hit@10"), strict=True):
        for panel, (data, epsilon) in zip(panels, panes, strict=True):
            for model, (label, colour) in CURVES.items():
                _band(panel, [r["curves"][metric] for r in rows if belongs(r, data, model, epsilon)], label, colour)
            dress(panel, f"{DATA[data]}, ε = {epsilon:g}", size=10)
        panels[0].set_ylabel(f"{metric.upper()} (%)")
    for panel in lines[-1]:
        panel.set_xlabel("step")
    if lines[0][0].get_legend_handles_labels()[0]:
        lines[0][0].legend(frameon=False, fontsize=8)
    save(plt, drawn, file)


def _band(panel: Any, curves: Sequence[Sequence[tuple[int, float]]], label: str, colour: str) -> None:
    steps, many = _together(curves)
    if steps:
        label = f"{label}, {len(many[0])} seeds"
        panel.plot(steps, [statistics.mean(values) for values in many], color=colour, label=label)
        panel.fill_between(steps, *zip(*((min(v), max(v)) for v in many), strict=True), color=colour, alpha=0.2)


def tuning(rows: Sequence[Row], file: Path) -> None:
    """NDCG@10 over learning rate and batch size: a panel for each model at one ε on one data set, mean over seeds."""
    plt = pyplot()
    found: dict[tuple[str, str, float], dict[tuple[float, float], list[float]]] = {}
    for row in rows:
        if row["tuned"]:
            one = found.setdefault((row["data"], row["model"], row["target"]), {})
            one.setdefault(tuple(row["tuned"]), []).append(100 * row["ndcg@10"])
    drawn, panels = plt.subplots(1, len(found), figsize=(4 * len(found), 3.2), layout="constrained", squeeze=False)
    for panel, ((data, model, epsilon), one) in zip(panels[0], sorted(found.items()), strict=True):
        rates, sizes = sorted({rate for rate, _ in one}), sorted({size for _, size in one})
        values = [[statistics.mean(one[r, s]) if (r, s) in one else float("nan") for s in sizes] for r in rates]
        title = f"{DATA[data]}: {MODELS[model]}, ε = {epsilon:g}"
        panel.set_title(textwrap.fill(title, 40), loc="left", fontsize=10, fontweight="bold")
        _heat(panel, values, rates, sizes)
    save(plt, drawn, file)


def _heat(panel: Any, values: Sequence[Sequence[float]], rates: Sequence[float], sizes: Sequence[float]) -> None:
    panel.imshow(values, cmap="Oranges", aspect="auto", alpha=0.6)
    panel.set_xticks(range(len(sizes)), [f"{size:g}" for size in sizes])
    panel.set_yticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    panel.set_xlabel("users a step")
    panel.set_ylabel("learning rate")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if value == value:
                panel.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=9)


def _together(curves: Sequence[Sequence[tuple[int, float]]]) -> tuple[list[int], list[list[float]]]:
    """Return the steps that all curves share, and the values in % at these steps."""
    maps = [dict(curve) for curve in curves if curve]
    if not maps:
        return [], []
    steps = sorted(set.intersection(*(set(one) for one in maps)))
    return steps, [[100 * one[step] for one in maps] for step in steps]
