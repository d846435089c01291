"""The error of a private mean against the number of records, the number of their entries, and the dimension.

A record has one of d/s values in each of s features: half of the time the first, which means missing, else the value at
place p with chance ∝ 1/p. Without missing values the mean has no large entries. Means of many records are drawn without
the records, because the counts are multinomial.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import sparse

from dprec.benchmarks.common.report import Row
from dprec.benchmarks.convex_studies.measured import measured
from dprec.convex.release.mechanisms import Gaussian, Laplace, LaplaceProjection, Projection, Recovery
from dprec.convex.release.noise import VectorNoise
from dprec.convex.release.promise import gaussian_multiplier
from dprec.convex.release.recovery import measurements_wanted, recovers
from dprec.convex.release.regimes import regime
from dprec.convex.release.rows import mean_of

EPSILON, DELTA = 1.0, 1e-6
ROUNDS = 3
MISSING = 0.5
HEADED = "error by sparsity, large entries"


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return the rows of all three studies."""
    rng = np.random.default_rng(0)
    d, s, n = (2_000, 4, 300) if quick else (200_000, 8, 1_000)
    rows: list[Row] = []
    for records in [10**k for k in range(2, 4)] if quick else [round(10 ** (k / 2)) for k in range(4, 17)]:
        say(f"means of {records:,} records")
        rows += by_records(records, d, s, rng)
    for sparsity in (2, 8) if quick else (4, 16, 64, 256):
        say(f"means of records with {sparsity} entries")
        rows += by_sparsity("error by sparsity", 300 if quick else 1_000, 2**10 if quick else 2**18, sparsity, 0.0, rng)
    for sparsity in (2, 8) if quick else (4, 16, 64):
        say(f"means of records with {sparsity} entries, most of them alike")
        rows += by_sparsity(HEADED, 300 if quick else 3_000, 2**10 if quick else 2**18, sparsity, MISSING, rng)
    for dimension in (500, 5_000) if quick else (2_000, 20_000, 200_000, 2_000_000):
        say(f"means in {dimension:,} dimensions")
        rows += by_dimension(n, dimension, s, rng)
    return rows


def by_records(n: int, d: int, s: int, rng: np.random.Generator) -> list[Row]:
    """Return the errors at one n: pure and approximate, with and without projection, and recovery where it works."""
    z = gaussian_multiplier(EPSILON, DELTA)
    mean = drawn_mean(n, d, s, rng)
    bounds = regime(n, d, s, 1.0, z)
    pure = regime(n, d, s, 1.0, 1 / EPSILON, pure=True)
    study, where = "error by records", (n, d, s, EPSILON)
    rows = [
        measured(study, "zero", *where, 0.0, float(np.linalg.norm(mean)), 1.0),
        measured(study, "plain Gaussian", *where, DELTA, error(Gaussian(1.0, s, z), mean, n), bounds.dense),
        measured(
            study, "projection", *where, DELTA, error(Projection(1.0, s, z), mean, n),
            min(bounds.sparse, bounds.dense), note=bounds.name,
        ),
        measured(study, "plain Laplace", *where, 0.0, error(Laplace(1.0, s, 1 / EPSILON), mean, n), pure.dense),
        measured(
            study, "projection, pure", *where, 0.0, error(LaplaceProjection(1.0, s, 1 / EPSILON), mean, n),
            min(pure.sparse, pure.dense), note=pure.name,
        ),
    ]  # fmt: skip
    if 300 <= n <= 10_000 and recovers(measurements_wanted(n, d, s, EPSILON, DELTA), d):
        rows.append(measured(study, "ℓ1-recovery", *where, DELTA, recovery_error(n, d, s, MISSING, rng, 1)))
    return rows


def by_sparsity(study: str, n: int, d: int, s: int, missing: float, rng: np.random.Generator) -> list[Row]:
    """Return errors at one s, and the two rates: (s ln d)^(1/4) and (s ln(d/s))^(1/4), without their constants."""
    z = gaussian_multiplier(EPSILON, DELTA)
    where = (n, d, s, EPSILON, DELTA)
    rates = (s * math.log(d)) ** 0.25, (s * math.log(d / s)) ** 0.25
    mean = drawn_mean(n, d, s, rng, missing)
    rows = [
        measured(study, "zero", n, d, s, EPSILON, 0.0, float(np.linalg.norm(mean))),
        measured(study, "projection", *where, error(Projection(1.0, s, z), mean, n), rates[0]),
    ]
    if recovers(measurements_wanted(n, d, s, EPSILON, DELTA), d):
        rows.append(measured(study, "ℓ1-recovery", *where, recovery_error(n, d, s, missing, rng, ROUNDS), rates[1]))
    return rows


def by_dimension(n: int, d: int, s: int, rng: np.random.Generator) -> list[Row]:
    """Return errors at one d."""
    z = gaussian_multiplier(EPSILON, DELTA)
    mean, bounds = drawn_mean(n, d, s, rng), regime(n, d, s, 1.0, z)
    study, where = "error by dimension", (n, d, s, EPSILON, DELTA)
    return [
        measured(study, "plain Gaussian", *where, error(Gaussian(1.0, s, z), mean, n), bounds.dense),
        measured(study, "projection", *where, error(Projection(1.0, s, z), mean, n), bounds.sparse),
    ]


def error(mechanism: Gaussian, mean: np.ndarray, n: int) -> float:
    """Return the mean ‖ẑ - z̄‖₂ over a few draws of the noise."""
    found = [np.linalg.norm(mechanism.of_mean(mean, n, VectorNoise(seed).at(0)) - mean) for seed in range(ROUNDS)]
    return float(np.mean(found))


def recovery_error(n: int, d: int, s: int, missing: float, rng: np.random.Generator, rounds: int) -> float:
    """Return the same for ℓ1-recovery, which needs the rows."""
    mechanism = Recovery(1.0, s, gaussian_multiplier(EPSILON, DELTA), EPSILON, DELTA)
    rows = drawn_rows(n, d, s, rng, missing)
    mean = mean_of(rows)
    return float(np.mean([np.linalg.norm(mechanism(rows, VectorNoise(k).at(0), rng) - mean) for k in range(rounds)]))


def drawn_rows(n: int, d: int, s: int, rng: np.random.Generator, missing: float = MISSING) -> sparse.csr_array:
    """Return n records (n, d) of norm 1 with exactly s entries."""
    ends = np.cumsum(_chances(d // s, missing))
    values = np.minimum(np.searchsorted(ends, rng.random((n, s))), d // s - 1) + d // s * np.arange(s)
    return sparse.csr_array((np.full(n * s, s**-0.5), values.ravel(), np.arange(0, n * s + 1, s)), shape=(n, d))


def drawn_mean(n: int, d: int, s: int, rng: np.random.Generator, missing: float = MISSING) -> np.ndarray:
    """Return the mean (d,) of n such records."""
    counts = np.concatenate([rng.multinomial(n, _chances(d // s, missing)) for _ in range(s)])
    return np.pad(counts / (n * math.sqrt(s)), (0, d - len(counts)))


def _chances(values: int, missing: float) -> np.ndarray:
    weights = 1 / np.arange(1, values + 1)
    weights *= (1 - missing) / weights.sum()
    weights[0] += missing
    return weights
