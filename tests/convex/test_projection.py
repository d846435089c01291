"""Projections against their definition, and the two inequalities they are there for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize

from dprec.convex.release.measurements import project_l1, project_linf, shrunk
from tests.convex.support import sparse_rows

VECTORS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=30).map(np.array)
RADII = st.floats(1e-3, 1e3)


@settings(max_examples=150, deadline=None)
@given(VECTORS, RADII)
def test_the_l1_projection_is_the_nearest_point(vector: np.ndarray, radius: float) -> None:
    found = project_l1(vector, radius)
    scale = max(1.0, float(np.abs(vector).max()))
    assert np.abs(found).sum() <= radius + 1e-9 * scale
    # The variational inequality at the corners of the ball: no point of it makes an acute angle with what is left.
    left = vector - found
    assert radius * np.abs(left).max() - left @ found <= 1e-7 * scale * (scale + radius)


@settings(max_examples=150, deadline=None)
@given(VECTORS, RADII)
def test_the_linf_projection_moves_no_entry_further_than_it_must(vector: np.ndarray, radius: float) -> None:
    found = project_linf(vector, radius)
    assert np.linalg.norm(found) <= radius * (1 + 1e-12)
    if np.linalg.norm(vector) <= radius:
        assert (found == vector).all()
        return
    largest = float(np.abs(vector).max())
    least = brentq(lambda t: np.linalg.norm(shrunk(vector, t)) - radius, 0, largest)
    assert np.abs(found - vector).max() == pytest.approx(least, rel=1e-6, abs=1e-6 * largest)


def test_the_l1_projection_agrees_with_a_solver() -> None:
    vector = np.random.default_rng(0).standard_normal(6) * 3
    # z = p - m with p, m ≥ 0 and Σ p + m ≤ 2
    solved = minimize(
        lambda x: ((x[:6] - x[6:] - vector) ** 2).sum(), np.zeros(12), bounds=[(0, None)] * 12, method="SLSQP",
        constraints={"type": "ineq", "fun": lambda x: 2 - x.sum()}, options={"ftol": 1e-14, "maxiter": 500},
    ).x  # fmt: skip
    assert project_l1(vector, 2.0) == pytest.approx(solved[:6] - solved[6:], abs=1e-5)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 5), st.floats(1e-4, 1e4), st.floats(0.1, 10), st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_the_error_is_bounded_by_the_largest_noise(
    dimension: int, sparsity: int, size: float, norm: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    mean = np.asarray(sparse_rows(rng, 7, dimension, sparsity, norm).mean(axis=0)).ravel()
    noise = size * rng.standard_cauchy(dimension)
    error = project_l1(mean + noise, norm * math.sqrt(sparsity)) - mean
    bound = 2 * norm * math.sqrt(sparsity) * np.abs(noise).max()
    assert error @ error <= bound * (1 + 1e-9) + 1e-9
    assert np.linalg.norm(error) <= np.linalg.norm(noise) * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(VECTORS, RADII, st.integers(0, 2**32 - 1))
def test_weights_stay_within_twice_the_largest_noise(inside: np.ndarray, radius: float, seed: int) -> None:
    weights = inside * min(1.0, radius / max(float(np.linalg.norm(inside)), 1e-300))
    noise = np.random.default_rng(seed).standard_cauchy(len(weights)) * radius
    moved = np.abs(project_linf(weights + noise, radius) - weights).max()
    assert moved <= 2 * np.abs(noise).max() * (1 + 1e-9)
