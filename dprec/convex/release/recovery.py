"""Recover a mean from a few noisy measurements: the vector of smallest ℓ1-norm that explains them."""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse

from dprec.convex.release.design import Design

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


# The two projections that reduce noise in all coordinates to noise in a few.


def project_l1(vector: np.ndarray, radius: float) -> np.ndarray:
    """Return the point nearest in ℓ2 with ℓ1-norm at most `radius`: all entries move towards 0 by the same amount.

    >>> project_l1(np.array([3.0, -1.0, 0.5]), 2.0)
    array([ 2., -0.,  0.])
    """
    sizes = np.abs(vector)
    total = sizes.sum()
    if total <= radius:
        return vector.copy()
    # The threshold of any subset is below the final one: that of all entries, and that of the largest alone. So only
    # entries above it are checked again.
    kept, threshold = sizes, max(sizes.max() - radius, (total - radius) / len(sizes))
    while True:
        above = kept[kept > threshold]
        if len(above) == len(kept) or not len(above):
            return shrunk(vector, threshold)
        kept, threshold = above, (above.sum() - radius) / len(above)


def project_linf(vector: np.ndarray, radius: float) -> np.ndarray:
    """Return a point nearest in ℓ∞ with ℓ2-norm at most `radius`: every entry moves by the same amount.

    >>> project_linf(np.array([5.0, -1.0, 0.5]), 4.0)
    array([ 4., -0.,  0.])
    """
    if np.linalg.norm(vector) <= radius:
        return vector.copy()
    sizes = np.sort(np.abs(vector))[::-1]
    count, sums, squares = np.arange(1, len(sizes) + 1), np.cumsum(sizes), np.cumsum(sizes**2)
    norms = squares - 2 * sizes * sums + count * sizes**2  # ‖shrunk by the k-th largest‖², ascending in k
    last = max(int(np.searchsorted(norms, radius**2)), 1) - 1
    k, total, square = last + 1, float(sums[last]), float(squares[last])
    spread = max(total**2 - k * (square - radius**2), 0.0)
    found = shrunk(vector, max((total - math.sqrt(spread)) / k, 0.0))
    norm = float(np.linalg.norm(found))
    return found * (radius / norm) if norm > radius else found  # rounding only


def shrunk(vector: np.ndarray, threshold: float) -> np.ndarray:
    """Return every entry moved towards 0 by `threshold`, but not past 0."""
    return np.sign(vector) * np.maximum(np.abs(vector) - threshold, 0.0)
