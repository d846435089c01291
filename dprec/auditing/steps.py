"""Evaluates the canaries' entries over a run's steps: scores for guessing, and gauges of the engine itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

SIGMAS = 4.0  # a gauge that differs by more standard errors than this is a breach


def scores(seen: np.ndarray, sigma: float, rate: float) -> Mapping[str, np.ndarray]:
    """Return two scores of every canary from its entries (T, m), in units of the clipping norm.

    The first is the likelihood ratio under a private engine that draws the canary at this rate: the best score against
    independent noise. The second is how much the entry changes between steps: it detects missing or repeated noise.
    """
    if sigma > 0:
        ratio = np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + (2 * seen - 1) / (2 * sigma**2))
        likelihood = ratio.sum(0)
    else:
        likelihood = seen.sum(0)
    return {"likelihood ratio": likelihood, "changes": np.ptp(seen, axis=0)}


@dataclass(frozen=True)
class Gauge:
    """A measured value, its standard error and the promised value."""

    measured: float
    error: float
    promised: float
    breach: bool


def gauges(seen: np.ndarray, planted: np.ndarray, sigma: float, rate: float) -> dict[str, Gauge]:
    """Noise, share and repetition, measured on entries (T, m) in units of the clipping norm.

    `noise` is the standard deviation at canaries that are left out, `share` what a canary adds when it is drawn.
    `repetition` is the correlation of the noise with that of the step before; if another distance between steps has a
    correlation too large for chance, it is the largest of these. Gauges need no theorem, and detect with a few hundred
    numbers errors for which a bound on ε needs many runs.
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
    if len(seen) > 1 and sigma > 0 and out.any():
        alike = correlations(out)
        errors = 1 / np.sqrt(out.shape[1] * np.arange(len(seen) - 1, 0, -1))
        most = np.sqrt(SIGMAS**2 + 2 * np.log(len(alike)))  # standard errors, for the largest of so many lags
        breach = bool((alike > most * errors).any())
        lag = int(np.argmax(alike / errors)) if breach else 0
        found["repetition"] = Gauge(float(alike[lag]), float(errors[lag]), 0.0, breach)
    return found


def correlations(entries: np.ndarray) -> np.ndarray:
    """Return the correlations of steps with those 1, 2, ... T - 1 before, over all columns of (T, n)."""
    steps, columns = entries.shape
    summed = np.zeros(2 * steps)
    for part in np.array_split(entries, max(1, entries.size >> 22), axis=1):  # 32 MB at a time
        spectrum = np.abs(np.fft.rfft(part, 2 * steps, axis=0)) ** 2
        summed += np.fft.irfft(spectrum.sum(1), 2 * steps)
    pairs = columns * np.arange(steps - 1, 0, -1)
    return summed[1:steps] / pairs / (entries**2).mean()


def as_dict(found: Mapping[str, Gauge]) -> dict[str, Any]:
    return {name: asdict(gauge) for name, gauge in found.items()}
