"""The two projections that reduce noise in all coordinates to noise in a few."""

from __future__ import annotations

import math

import numpy as np


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
