"""What the steps of a run did to the canaries' entries: scores to guess by, and gauges of the engine itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

SIGMAS = 4.0  # a gauge that is off by so many standard errors is off


def scores(seen: np.ndarray, sigma: float, rate: float) -> Mapping[str, np.ndarray]:
    """Two scores of every canary from its entries (T, m), in units of the clipping norm.

    The likelihood ratio of what a private engine that drew it at this rate would show is the best there is against
    independent noise. How much the entry changes from step to step tells if noise is missing or repeated.
    """
    if sigma > 0:
        ratio = np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + (2 * seen - 1) / (2 * sigma**2))
        likelihood = ratio.sum(0)
    else:
        likelihood = seen.sum(0)
    return {"likelihood ratio": likelihood, "changes": np.ptp(seen, axis=0)}


@dataclass(frozen=True)
class Gauge:
    """Something measured beside what it should be, with its standard error."""

    measured: float
    error: float
    promised: float
    breach: bool


def gauges(seen: np.ndarray, planted: np.ndarray, sigma: float, rate: float) -> dict[str, Gauge]:
    """Noise, share and repetition, measured on entries (T, m) in units of the clipping norm.

    `noise` is the standard deviation at canaries that are not there, `share` what a canary adds when it is drawn,
    `repetition` the correlation of one step's noise with the next one's. They need no theorem, and find in a few
    hundred numbers what a bound on ε needs many runs for.
    """
    out, inside = seen[:, ~planted], seen[:, planted]
    found = {}
    if out.size:
        noise, error = float(out.std()), sigma / np.sqrt(2 * out.size)
        found["noise"] = Gauge(noise, float(error), sigma, bool(noise + SIGMAS * error < sigma * (1 - 1e-3)))
    if inside.size:
        share = float(inside.mean()) / rate
        error = np.sqrt((sigma**2 + rate * (1 - rate)) / inside.size) / rate
        found["share"] = Gauge(share, float(error), 1.0, bool(share - SIGMAS * error > 1 + 1e-3))
    if out.size and len(seen) > 1 and sigma > 0:
        before, after = out[:-1].ravel(), out[1:].ravel()
        scale = float(np.sqrt((before**2).mean() * (after**2).mean()))
        alike = float((before * after).mean()) / scale if scale > 0 else 1.0
        error = 1 / np.sqrt(len(before))
        found["repetition"] = Gauge(alike, float(error), 0.0, bool(alike > SIGMAS * error))
    return found


def as_dict(found: Mapping[str, Gauge]) -> dict[str, Any]:
    return {name: asdict(gauge) for name, gauge in found.items()}
