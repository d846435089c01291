"""Records as sparse rows with bounded norms, for any data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import sparse

from dprec.errors import UserError


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
