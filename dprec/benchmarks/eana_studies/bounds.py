"""EANA's Figure 2, as rows and as a picture: ε of Theorem 3.1, printed and exact, beside DP-SGD with its noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from dprec.auditing import eana
from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row
from dprec.reporting.figure import DPREC, dress, pyplot, save

DELTA, WIDTH = 1e-7, 10.0  # as in the paper, with vectors of norm 1
SIGMAS, COLOURS = (0.1, 0.3, 1.0), (DPREC, "#0f172a", "#64748b")
COUNTS = (10, 100, 1_000, 10_000, 100_000)
COLUMNS = {
    "sigma": "σ", "count": "users of a coordinate", "dp_sgd": "DP-SGD", "printed": "EANA, printed",
    "exact": "EANA, exact", "ratio": "printed / DP-SGD",
}  # fmt: skip


def rows() -> list[Row]:
    """Return a row for each σ and number of users of every coordinate.

    >>> [(row["printed"] > row["exact"] > row["dp_sgd"]) for row in rows()[1:3]]
    [True, True]
    """
    found: list[Row] = []
    for sigma in SIGMAS:
        for count in COUNTS:
            private, printed, exact = (
                eana.epsilon(bound, DELTA, count, sigma, width=WIDTH)
                for bound in (eana.dp_sgd, eana.printed, eana.added)
            )
            ratio = printed / private
            found.append(
                {"sigma": sigma, "count": count, "dp_sgd": private, "printed": printed, "exact": exact, "ratio": ratio}
            )
    return found


def table(found: Sequence[Row]) -> Table:
    # Not a number where a bound has no finite order: with few users it is infinite.
    shown = [row | {key: None for key, value in row.items() if not np.isfinite(value)} for row in found]
    return report.table(shown, COLUMNS, f"ε at δ = {DELTA:g} of EANA's Theorem 3.1, d0 = {WIDTH:g}, L = 1")


def picture(file: Path) -> None:
    """ε of the theorem over the number of users of a coordinate, and its ratio to DP-SGD's."""
    plt = pyplot()
    counts = np.geomspace(COUNTS[0], COUNTS[-1], 60)
    drawn, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for sigma, colour in zip(SIGMAS, COLOURS, strict=True):
        private = _epsilons(eana.dp_sgd, counts, sigma)
        left.plot(counts, private, color=colour, linewidth=1, linestyle=":")
        for bound, style in ((eana.added, "-"), (eana.printed, "--")):
            found = _epsilons(bound, counts, sigma)
            left.plot(counts, found, color=colour, linestyle=style, label=f"σ = {sigma:g}" if style == "-" else None)
            right.plot(counts, found / private, color=colour, linestyle=style)
    left.set_yscale("log")
    dress(left, f"ε at δ = {DELTA:g}")
    dress(right, "ε of EANA / ε of DP-SGD")
    for panel in (left, right):
        panel.set_xscale("log")
        panel.set_xlabel("users who touch each coordinate")
    left.legend(frameon=False, fontsize=8, title="solid: corrected, dashed: printed, dotted: DP-SGD")
    save(plt, drawn, file)


def _epsilons(bound: eana.Bound, counts: np.ndarray, sigma: float) -> np.ndarray:
    return np.array([eana.epsilon(bound, DELTA, count, sigma, width=WIDTH) for count in counts])
