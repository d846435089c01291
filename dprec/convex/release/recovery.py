"""Recover a mean from a few noisy measurements: the vector of smallest ℓ1-norm that explains them."""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse

from dprec.convex.release.design import Design
from dprec.convex.release.projection import shrunk

LONGEST = 1.5  # the largest norm of a measured row, over that of an unmeasured one
FEWER = 6  # theory gives the order of m without a constant: of 1 / 32 to 1, a sixth had the smallest error
RELAXED = 1.6  # steps longer than 1 converge in fewer steps
_BLOCK = 1 << 22  # entries of the columns that are in memory at a time


def measurements_wanted(records: int, dimension: int, sparsity: int, epsilon: float, delta: float) -> int:
    """Return m ∝ nε √(s ln(d / s) / ln(1 / δ)), which balances the noise against the error of m measurements.

    >>> measurements_wanted(1000, 200_000, 8, 1.0, 1e-6)
    404
    """
    spread = sparsity * math.log(max(dimension / sparsity, math.e)) / math.log(1 / delta)
    return max(1, math.ceil(records * epsilon * math.sqrt(spread) / FEWER))


def recovers(measurements: int, dimension: int) -> bool:
    """Whether there are few enough measurements for ℓ1-recovery to tolerate their noise: d ≥ m ln² m.

    >>> recovers(2000, 200_000), recovers(2000, 100_000)
    (True, False)
    """
    return dimension >= measurements * math.log(measurements) ** 2 and dimension >= 2 * measurements


def measured_mean(rows: sparse.csr_array, design: Design, longest: float) -> np.ndarray:
    """Return (1/n) Σ A z_i, with every A z_i scaled down to norm `longest` at most.

    Replacing a row moves the result by at most 2 longest / n, so privacy does not depend on a property of the design.
    """
    total = np.zeros(design.measurements)
    most = max(1, _BLOCK // design.measurements)  # columns at a time
    start = 0
    while start < rows.shape[0]:
        stop = max(int(np.searchsorted(rows.indptr, rows.indptr[start] + most, side="right")) - 1, start + 1)
        block = rows[start:stop]
        places, where = np.unique(block.indices, return_inverse=True)
        narrow = sparse.csr_array((block.data, where, block.indptr), shape=(stop - start, len(places)))
        measured = narrow @ design.columns(places).T  # (rows, m)
        norms = np.linalg.norm(measured, axis=1)
        total += np.minimum(1.0, longest / np.maximum(norms, np.finfo(float).tiny)) @ measured
        start = stop
    return total / rows.shape[0]


def least_l1(design: Design, measured: np.ndarray, tolerance: float = 0.02, steps: int = 500) -> np.ndarray:
    """Return argmin ‖z‖₁ among A z = b, to a duality gap of `tolerance` ‖z‖₁ or after `steps` steps.

    Douglas-Rachford splitting: one step towards the solutions of A z = b, which takes one product with A and one with
    Aᵀ, and one step towards small entries. Their difference is a dual vector, which gives the gap. Linear programming
    solvers need the matrix in memory, and a cosine transform has none.
    """
    if not measured.any():
        return np.zeros(design.size)
    state = design.adjoint(design.solve(measured))
    step = float(np.abs(state).max()) / 2
    for count in range(steps):
        feasible = state + design.adjoint(design.solve(measured - design.apply(state)))
        dual = feasible - state  # in the range of Aᵀ; at the solution it is a subgradient of step ‖z‖₁
        if count % 10 == 9:
            norm = float(np.abs(feasible).sum())
            if norm - abs(float(dual @ feasible)) / float(np.abs(dual).max()) <= tolerance * norm:
                break
        state += RELAXED * (shrunk(feasible + dual, step) - feasible)
    return feasible
