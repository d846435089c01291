"""One number of the comparison, with its upper bound in theory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dprec.benchmarks.common.report import Row


def measured(
    study: str, method: str, n: int, d: int, s: int, epsilon: float | None, delta: float | None, value: float,
    theory: float | None = None, auc: float | None = None, note: str = "",
) -> Row:  # fmt: skip
    """Return a row; `value` is the study's measurement: an error, an excess risk, an entropy or a number of steps."""
    return {
        "study": study,
        "method": method,
        "n": int(n),
        "d": int(d),
        "s": int(s),
        "epsilon": epsilon,
        "delta": delta,
        "value": float(value),
        "theory": theory,
        "auc": auc,
        "note": note,
    }


def curve(rows: Sequence[Row], study: str, method: str, by: str = "n") -> tuple[list[float], list[float]]:
    """Return the values of a method against n, or another column, in its ascending order."""
    found = sorted((row[by], row["value"]) for row in rows if (row["study"], row["method"]) == (study, method))
    return [place for place, _ in found], [value for _, value in found]


def slope(rows: Sequence[Row], study: str, method: str, low: float, high: float, by: str = "n") -> float | None:
    """Return the exponent of the value between two places, both included, by least squares in log-log.

    >>> rows = [measured("means", "x", n, 10, 1, 1.0, 0.0, 5 / n) for n in (10, 100, 1000)]
    >>> round(slope(rows, "means", "x", 10, 1000), 6)
    -1.0
    """
    places, values = curve(rows, study, method, by)
    points = [(math.log(x), math.log(y)) for x, y in zip(places, values, strict=True) if low <= x <= high and y > 0]
    if len(points) < 2:
        return None
    x_mean, y_mean = (math.fsum(part) / len(points) for part in zip(*points, strict=True))
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)
