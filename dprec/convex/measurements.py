"""Random measurements of a sparse vector, and its recovery from them.

There are far fewer measurements than entries. The recovered vector has the smallest ℓ1-norm that explains them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import sparse
from scipy.fft import dct, idct, next_fast_len

from dprec.errors import UserError


class Design:
    """A public (m, size) matrix A: random rows of a cosine transform after random signs.

    It recovers as well as the paper's matrix of Gaussian entries, without a matrix in memory, in O(d ln d). `size` may
    be larger than the requested dimension.
    """

    def __init__(self, measurements: int, size: int, rng: np.random.Generator) -> None:
        self.measurements, self.size = measurements, next_fast_len(size)
        self.rows = np.sort(rng.choice(self.size, measurements, replace=False))
        self.signs = rng.choice((-1.0, 1.0), self.size)
        self.scale = math.sqrt(self.size / measurements)

    def apply(self, vector: np.ndarray) -> np.ndarray:
        """Return A z."""
        return self.scale * dct(self.signs * vector, norm="ortho")[self.rows]

    def adjoint(self, measured: np.ndarray) -> np.ndarray:
        """Return Aᵀ y."""
        spread = np.zeros(self.size)
        spread[self.rows] = self.scale * measured
        return self.signs * idct(spread, norm="ortho", overwrite_x=True)

    def solve(self, measured: np.ndarray) -> np.ndarray:
        """Return (A Aᵀ)⁻¹ y."""
        return measured / self.scale**2

    def columns(self, places: np.ndarray) -> np.ndarray:
        """Return these columns of A, (m, places)."""
        angles = np.outer(self.rows, (2 * places + 1) * (math.pi / (2 * self.size)))
        found = np.cos(angles, out=angles)
        found *= self.scale * math.sqrt(2 / self.size) * self.signs[places]
        found[self.rows == 0] /= math.sqrt(2)
        return found


# Records as sparse rows with bounded norms, for any data.


def bounded_rows(features: Any, norm: float, sparsity: int) -> sparse.csr_array:
    """Return rows with ‖x‖₂ ≤ norm and ‖x‖₁ ≤ norm √sparsity; longer rows are scaled down, invalid rows become 0.

    A row of at most `sparsity` entries and norm at most `norm` keeps both bounds and does not change. A row that is not
    finite, or exceeds 1e150, counts as 0, so that no single record can prevent a result.

    >>> bounded_rows([[3.0, 4.0], [0.3, 0.0], [float("nan"), 1.0]], norm=1.0, sparsity=2).toarray().round(3)
    array([[0.6, 0.8],
           [0.3, 0. ],
           [0. , 0. ]])
    """
    if not 1e-100 < norm < 1e100:  # outside this range the squares of rows are 0 or infinite
        raise UserError(f"norm is {norm}: give the largest norm of a row, such as 1.0")
    if not 1 <= sparsity < math.inf:
        raise UserError(f"sparsity is {sparsity}: give the most nonzero entries of a row, at least 1")
    try:
        rows = sparse.csr_array(features, dtype=np.float64, copy=True)
    except (TypeError, ValueError) as error:
        raise UserError(f"the features are not a matrix of numbers ({error}): give a scipy.sparse matrix") from None
    if len(rows.shape) != 2 or 0 in rows.shape:
        raise UserError(f"the features have shape {rows.shape}: give a row for each record and at least one column")
    rows.sum_duplicates()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        l2, l1 = _row_norms(rows)
        factors = np.minimum(1.0, np.minimum(norm / l2, norm * math.sqrt(sparsity) / l1))
    factors = np.where(np.isfinite(l2) & np.isfinite(l1), np.nan_to_num(factors, nan=1.0), 0.0)
    lengths = np.diff(rows.indptr)
    rows.data = np.where(np.repeat(factors, lengths) > 0, rows.data, 0.0) * np.repeat(factors, lengths)
    return rows


def mean_of(rows: sparse.csr_array) -> np.ndarray:
    """Return the dense mean of the rows."""
    total = np.bincount(rows.indices, weights=rows.data, minlength=rows.shape[1])
    return total / rows.shape[0]


def _row_norms(rows: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    ones = np.ones(rows.shape[1])
    sums = [sparse.csr_array((v, rows.indices, rows.indptr), rows.shape) @ ones for v in (rows.data**2, abs(rows.data))]
    return np.sqrt(sums[0]), sums[1]


LONGEST = 1.5  # the largest norm of a measured row, over that of an unmeasured one
FEWER = 6  # theory gives m up to a constant: among 1 / 32 to 1, a sixth had the smallest error
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
    """Return argmin ‖z‖₁ subject to A z = b, to a duality gap of `tolerance` ‖z‖₁ or after `steps` steps.

    Douglas-Rachford splitting: one step towards the solutions of A z = b, which takes one product with A and one with
    Aᵀ, and one step towards small entries. Their difference is a dual vector, which gives the gap. Solvers of linear
    programs would need the matrix in memory, which a cosine transform does not have.
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
