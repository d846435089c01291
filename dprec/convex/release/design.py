"""Random measurements of a sparse vector: far fewer numbers than entries, from which the vector can be recovered."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from scipy.fft import dct, idct, next_fast_len
from scipy.linalg import cho_factor, cho_solve

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
