"""Sparse records to test with."""

from __future__ import annotations

import math

import numpy as np
from scipy import sparse


def sparse_rows(rng: np.random.Generator, n: int, d: int, s: int, norm: float = 1.0) -> sparse.csr_array:
    """Records (n, d) of this norm with at most s entries of either sign."""
    s = min(s, d)
    rows = sparse.lil_array((n, d))
    for row in range(n):
        values = rng.standard_normal(s)
        rows[row, rng.choice(d, s, replace=False)] = norm * values / np.linalg.norm(values)
    return sparse.csr_array(rows)


def one_hot(rng: np.random.Generator, n: int, d: int, s: int) -> sparse.csr_array:
    """Records (n, d) of norm 1 with one of d // s values in each of s features, all of one value at times."""
    places = rng.integers(d // s, size=(n, s)) * rng.integers(2, size=(n, s)) + d // s * np.arange(s)
    ends = np.arange(0, n * s + 1, s)
    return sparse.csr_array((np.full(n * s, 1 / math.sqrt(s)), places.ravel(), ends), shape=(n, d))
