"""The gain from sparse gradients: errors of means, excess risks and models of clicks, with the rates of the theory.

They are compared with plain noise in every entry and with DP-SGD, at the same ε, δ and neighbours: one record replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Group
from rich.table import Table

from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.convex_studies import clicks, descent, means, risks
from dprec.benchmarks.convex_studies import picture as drawing
from dprec.benchmarks.convex_studies.measured import slope
from dprec.errors import UserError
from dprec_kernels.threads import one_thread

OPTIONS = ("study",)  # of the command line
COLUMNS = {"method": "method", "n": "records", "d": "d", "s": "s", "epsilon": "ε", "delta": "δ"}
HEADINGS = {  # study: the meaning of its value
    "error by records": "‖ẑ − z̄‖₂",
    "error by sparsity": "‖ẑ − z̄‖₂",
    means.HEADED: "‖ẑ − z̄‖₂",
    "error by dimension": "‖ẑ − z̄‖₂",
    "excess risk": "F(ŵ) − F(w₀)",
    "stopping time": "steps",
    clicks.STUDY: "entropy",
    descent.RISK: "F(ŵ) − F(w₀)",
    descent.NORM: "‖∇F(ŵ)‖",
}


def run(quick: bool, say: Callable[[str], None], study: str | None = None) -> list[Row]:
    """Return a row for each method, place and study: of rates and clicks, or of bias-reduced descent."""
    if study not in (None, "rates", "descent"):
        raise UserError(f"--study {study}: give rates or descent")
    with one_thread():
        if study == "descent":
            return descent.run(quick, say)
        return [*means.run(quick, say), *risks.run(quick, say), *clicks.run(quick, say)]


def table(rows: Sequence[Row]) -> Group:
    """Return a table for each study, and the exponents."""
    found = {row["study"] for row in rows}
    return Group(*(_table(rows, study) for study in HEADINGS if study in found), *slopes(rows))


def picture(rows: Sequence[Row], file: Path) -> None:
    """Draw the panels of these studies."""
    (drawing.descent if any(row["study"] == descent.RISK for row in rows) else drawing.panels)(rows, file)


def slopes(rows: Sequence[Row]) -> list[str]:
    """Return how fast errors and risks fall with the number of records, beside the theory."""
    asked = (
        ("error by records", "projection", 1e3, 3.2e4, "-1/2 in the sparse regime"),
        ("error by records", "projection", 1e7, 1e8, "-1 beyond it"),
        ("excess risk", "output perturbation", 1e3, 1e6, "-1/2"),
        ("excess risk", "output perturbation, pure", 1e3, 1e6, "-1/3"),
        (descent.RISK, descent.POPULATION, 1e3, 1e5, "-1/2"),
        (descent.RISK, descent.RECORDS, 1e3, 1e5, "-1/2"),
        (descent.RISK, descent.BESIDE, 1e3, 1e5, "-1/2"),
        (descent.NORM, descent.RECORDS, 1e3, 1e5, "-1/4"),
    )
    lines = []
    for study, method, low, high, theory in asked:
        found = slope(rows, study, method, low, high)
        if found is not None:
            lines.append(f"{study}, {method}: exponent {found:.2f} from n = {low:,.0f} to {high:,.0f}; theory {theory}")
    return lines


def _table(rows: Sequence[Row], study: str) -> Table:
    here = [{key: _figure(key, value) for key, value in row.items()} for row in rows if row["study"] == study]
    more = {"value": HEADINGS[study], "theory": "theory", "auc": "AUC", "note": "note"}
    shown = {key: heading for key, heading in more.items() if any(row[key] for row in here)}
    return report.table(here, COLUMNS | shown, study.capitalize())


def _figure(key: str, value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) and key != "n" else value
