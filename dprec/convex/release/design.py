"""Random measurements of a sparse vector: far fewer numbers than entries, from which the vector can be recovered."""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from scipy import sparse
from scipy.fft import dct, idct, next_fast_len
from scipy.linalg import cho_factor, cho_solve

from dprec.errors import UserError

MATRIX = 1 << 24  # entries of the largest matrix that is kept; a cosine transform replaces a larger one


class Design(Protocol):
    """A public (m, size) matrix A of full row rank; `size` may be larger than the requested dimension."""

    measurements: int
    size: int

    def apply(self, vector: np.ndarray) -> np.ndarray:
        """Return A z."""

    def adjoint(self, measured: np.ndarray) -> np.ndarray:
        """Return Aᵀ y."""

    def solve(self, measured: np.ndarray) -> np.ndarray:
        """Return (A Aᵀ)⁻¹ y."""

    def columns(self, places: np.ndarray) -> np.ndarray:
        """Return these columns of A, (m, places)."""


class GaussianDesign:
    """A matrix of independent N(0, 1/m), kept in memory."""

    def __init__(self, measurements: int, size: int, rng: np.random.Generator) -> None:
        self.measurements, self.size = measurements, size
        self.matrix = rng.standard_normal((measurements, size))
        self.matrix /= math.sqrt(measurements)
        self._factor = cho_factor(self.matrix @ self.matrix.T)

    def apply(self, vector: np.ndarray) -> np.ndarray:
        return self.matrix @ vector

    def adjoint(self, measured: np.ndarray) -> np.ndarray:
        return measured @ self.matrix

    def solve(self, measured: np.ndarray) -> np.ndarray:
        return cho_solve(self._factor, measured)

    def columns(self, places: np.ndarray) -> np.ndarray:
        return self.matrix[:, places]


class CosineDesign:
    """Random rows of a cosine transform after random signs: the same recovery without a matrix, in O(d ln d)."""

    def __init__(self, measurements: int, size: int, rng: np.random.Generator) -> None:
        self.measurements, self.size = measurements, next_fast_len(size)
        self.rows = np.sort(rng.choice(self.size, measurements, replace=False))
        self.signs = rng.choice((-1.0, 1.0), self.size)
        self.scale = math.sqrt(self.size / measurements)

    def apply(self, vector: np.ndarray) -> np.ndarray:
        return self.scale * dct(self.signs * vector, norm="ortho")[self.rows]

    def adjoint(self, measured: np.ndarray) -> np.ndarray:
        spread = np.zeros(self.size)
        spread[self.rows] = self.scale * measured
        return self.signs * idct(spread, norm="ortho", overwrite_x=True)

    def solve(self, measured: np.ndarray) -> np.ndarray:
        return measured / self.scale**2

    def columns(self, places: np.ndarray) -> np.ndarray:
        angles = np.outer(self.rows, (2 * places + 1) * (math.pi / (2 * self.size)))
        found = np.cos(angles, out=angles)
        found *= self.scale * math.sqrt(2 / self.size) * self.signs[places]
        found[self.rows == 0] /= math.sqrt(2)
        return found


def random_design(measurements: int, size: int, rng: np.random.Generator) -> Design:
    """Return the paper's matrix if it is small, otherwise the cosine transform, which behaves like it."""
    kind = GaussianDesign if measurements * size <= MATRIX else CosineDesign
    return kind(measurements, size, rng)


# Records as sparse rows with bounded norms, for any data.


def bounded_rows(features: Any, norm: float, sparsity: int) -> sparse.csr_array:
    """Return rows with ‖x‖₂ ≤ norm and ‖x‖₁ ≤ norm √sparsity; longer rows are scaled down, invalid rows become 0.

    A row of at most `sparsity` entries and norm at most `norm` keeps both bounds and does not change. A row that is not
    finite, or is beyond 1e150, counts as 0, so no record decides whether there is a result.

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
