"""EANA's Figure 2 as rows: ε of Theorem 3.1, printed and exact, beside DP-SGD with the same noise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.table import Table

from dprec.auditing import eana
from dprec.benchmarks.common import report
from dprec.benchmarks.common.report import Row

DELTA, WIDTH = 1e-7, 10.0  # as in the paper, with vectors of norm 1
SIGMAS = (0.1, 0.3, 1.0)
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
