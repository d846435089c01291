"""Four panels: the sparse regime, error against sparsity, excess risk, and models of clicks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dprec.benchmarks.common.report import Row
from dprec.benchmarks.convex_studies import descent as measurements
from dprec.benchmarks.convex_studies.clicks import STUDY
from dprec.benchmarks.convex_studies.measured import curve
from dprec.reporting.figure import DPREC, PRIVATE, dress, pyplot, save

OTHER, FAINT = "#0369a1", "#94a3b8"
TOP = 1.05  # normalised entropy: above 1 a model is worse than the base rate


def panels(rows: Sequence[Row], file: Path) -> None:
    """Draw and write the picture."""
    plt = pyplot()
    drawn, ((means, sparsity), (risks, clicks)) = plt.subplots(2, 2, figsize=(12, 8.5), layout="constrained")
    _means(means, rows)
    _sparsity(sparsity, rows)
    _risks(risks, rows)
    _clicks(clicks, rows)
    for panel in (means, sparsity, risks, clicks):
        panel.set_xscale("log")
        panel.legend(frameon=False, fontsize=8)
    save(plt, drawn, file)


def descent(rows: Sequence[Row], file: Path) -> None:
    """Draw bias-reduced descent: excess risks, and the gradient's norm, beside the rates of the theory."""
    plt = pyplot()
    drawn, (risks, norms) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    title = "Bias-reduced descent, d = {d:,}, ε = {epsilon:g}"
    _title(risks, rows, measurements.RISK, title, "records", "F(ŵ) − F(w₀)")
    for method, colour in (
        (measurements.POPULATION, DPREC),
        (measurements.RECORDS, OTHER),
        (measurements.BESIDE, FAINT),
    ):
        _plot(risks, rows, measurements.RISK, method, color=colour)
    _rate(risks, rows, measurements.RISK, measurements.POPULATION, 2)
    _title(norms, rows, measurements.NORM, "A loss that is not convex", "records", "‖∇F(ŵ)‖")
    _plot(norms, rows, measurements.NORM, measurements.RECORDS, color=DPREC)
    _rate(norms, rows, measurements.NORM, measurements.RECORDS, 4)
    for panel in (risks, norms):
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.legend(frameon=False, fontsize=8)
    save(plt, drawn, file)


def _means(panel: Any, rows: Sequence[Row]) -> None:
    study = "error by records"
    _title(panel, rows, study, "Error of a private mean, d = {d:,}, s = {s}, ε = {epsilon:g}", "records", "‖ẑ − z̄‖₂")
    for method, colour in (("plain Gaussian", PRIVATE), ("projection", DPREC), ("ℓ1-recovery", OTHER), ("zero", FAINT)):
        _plot(panel, rows, study, method, color=colour)
    bounds = sorted((row["n"], row["theory"], row["note"]) for row in rows if _is(row, study, "projection"))
    places, values = [place for place, *_ in bounds], [value for _, value, _ in bounds]
    panel.plot(places, values, color=DPREC, linewidth=0.8, linestyle=(0, (4, 3)), label="bound for the projection")
    inside = [place for place, _, regime in bounds if regime == "sparse"]
    if len(inside) > 1:
        panel.axvspan(inside[0], inside[-1], color=DPREC, alpha=0.07, label="sparse regime, by the bounds")
    panel.set_yscale("log")


def _sparsity(panel: Any, rows: Sequence[Row]) -> None:
    study = "error by sparsity"
    _title(
        panel, rows, study, "Error against entries, {n:,} records, d = {d:,}, ε = {epsilon:g}", "entries s", "‖ẑ − z̄‖₂"
    )
    rates = {"projection": ("(s ln d)^¼", DPREC), "ℓ1-recovery": ("(s ln(d/s))^¼", OTHER)}
    for method, (name, colour) in rates.items():
        _plot(panel, rows, study, method, by="s", color=colour)
        found = sorted((row["s"], row["theory"], row["value"]) for row in rows if _is(row, study, method))
        if found:
            scale = found[0][2] / found[0][1]
            places, values = [place for place, *_ in found], [scale * rate for _, rate, _ in found]
            panel.plot(places, values, color=colour, linewidth=0.8, linestyle=(0, (4, 3)), label=f"∝ {name}")
    panel.set_yscale("log")


def _risks(panel: Any, rows: Sequence[Row]) -> None:
    study = "excess risk"
    title = "Excess risk of output perturbation, d = {d:,}, ε = {epsilon:g}"
    _title(panel, rows, study, title, "records", "F(ŵ) − F(w₀)")
    for method, colour, root in (("output perturbation", DPREC, 2), ("output perturbation, pure", OTHER, 3)):
        _plot(panel, rows, study, method, color=colour)
        _rate(panel, rows, study, method, root, color=colour)
    panel.set_yscale("log")


def _rate(panel: Any, rows: Sequence[Row], study: str, method: str, root: int, color: str = DPREC) -> None:
    """Draw n^(-1/root) from the first value on."""
    places, values = (np.array(part) for part in curve(rows, study, method))
    if len(places):
        rate = values[0] * (places / places[0]) ** (-1 / root)
        panel.plot(places, rate, color=color, linewidth=0.8, linestyle=(0, (4, 3)), label=f"∝ n^(−1/{root})")


def _clicks(panel: Any, rows: Sequence[Row]) -> None:
    title = "Models of clicks, {d:,} hashed features"
    _title(panel, rows, STUDY, title, "records", "normalised entropy (lower is better)")
    here = [row for row in rows if row["study"] == STUDY]
    shades = {1: 0.5, 2: 1.0}
    for epsilon, dash in ((1.0, (0, (4, 2))), (8.0, "-")):
        steps = sorted({row["method"] for row in here if row["method"].startswith("DP-SGD")}, key=_steps)
        for number, method in enumerate(steps, start=1):
            _line(panel, here, method, epsilon, color=PRIVATE, alpha=shades.get(number, 1.0), linestyle=dash)
        _line(panel, here, "output perturbation", epsilon, color=DPREC, linestyle=dash)
        _line(panel, here, "bias-reduced SGD", epsilon, color=OTHER, linestyle=dash)
    _line(panel, here, "without privacy", None, color="#0f172a", linestyle=":")


def _line(panel: Any, rows: Sequence[Row], method: str, epsilon: float | None, **style: Any) -> None:
    found = sorted((row["n"], row["value"]) for row in rows if (row["method"], row["epsilon"]) == (method, epsilon))
    if found:
        places, values = zip(*found, strict=True)
        label = method if epsilon is None else f"{method}, ε = {epsilon:g}"
        if max(values) > TOP:
            label += f" (up to {max(values):.2f}, off the scale)"
        panel.plot(places, [min(value, TOP) for value in values], marker="o", markersize=3, label=label, **style)


def _plot(panel: Any, rows: Sequence[Row], study: str, method: str, by: str = "n", **style: Any) -> None:
    places, values = curve(rows, study, method, by)
    if places:
        panel.plot(places, values, marker="o", markersize=3, label=method, **style)


def _title(panel: Any, rows: Sequence[Row], study: str, title: str, across: str, up: str) -> None:
    first = next(row for row in rows if row["study"] == study)
    dress(panel, title.format(**first))
    panel.set_xlabel(across)
    panel.set_ylabel(up)


def _is(row: Row, study: str, method: str) -> bool:
    return (row["study"], row["method"]) == (study, method)


def _steps(method: str) -> int:
    return int("".join(filter(str.isdigit, method)))
