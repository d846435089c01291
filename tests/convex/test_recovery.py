"""ℓ1-recovery: its measurements, its solver against linear programming, and what guards it."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from dprec.convex.release.measurements import (
    CosineDesign,
    Design,
    GaussianDesign,
    least_l1,
    mean_of,
    measured_mean,
    measurements_wanted,
    recovers,
)
from dprec.convex.release.mechanisms import Gaussian, Recovery, VectorNoise
from tests.convex.support import one_hot, sparse_rows

DESIGNS = [GaussianDesign, CosineDesign]


class Blown(GaussianDesign):
    """A design that is no isometry of anything: some columns are a hundred times as long as others."""

    def __init__(self, measurements: int, size: int, rng: np.random.Generator) -> None:
        super().__init__(measurements, size, rng)
        self.matrix[:, ::3] *= 100


@pytest.mark.parametrize("kind", DESIGNS)
@pytest.mark.parametrize("size", [37, 64])
def test_a_design_is_one_matrix_in_all_its_forms(kind: type[Design], size: int) -> None:
    design = kind(12, size, np.random.default_rng(0))
    matrix = np.stack([design.apply(row) for row in np.eye(design.size)], axis=1)  # (m, size)
    assert matrix.shape == (12, design.size)
    assert np.allclose(design.columns(np.arange(design.size)), matrix)
    assert np.allclose(np.stack([design.adjoint(row) for row in np.eye(12)]), matrix)
    assert np.allclose(matrix @ matrix.T @ np.stack([design.solve(row) for row in np.eye(12)], axis=1), np.eye(12))


@pytest.mark.parametrize("kind", DESIGNS)
def test_the_solver_agrees_with_linear_programming(kind: type[Design]) -> None:
    rng = np.random.default_rng(2)
    design = kind(20, 64, rng)
    matrix, measured = design.columns(np.arange(64)), rng.standard_normal(20)
    both = np.concatenate([matrix, -matrix], axis=1)
    least = linprog(np.ones(128), A_eq=both, b_eq=measured, bounds=(0, None), method="highs").fun
    found = least_l1(design, measured, tolerance=1e-4, steps=20_000)
    assert np.allclose(design.apply(found), measured)
    assert least * (1 - 1e-9) <= np.abs(found).sum() <= least * (1 + 1e-3)


def test_a_sparse_vector_is_found_again() -> None:
    rng = np.random.default_rng(3)
    design = CosineDesign(120, 2_000, rng)
    sparse = np.zeros(design.size)
    sparse[rng.choice(2_000, 10, replace=False)] = rng.standard_normal(10)
    assert least_l1(design, design.apply(sparse), 1e-6, 3_000) == pytest.approx(sparse, abs=1e-3)
    assert not least_l1(design, np.zeros(120)).any()


@pytest.mark.parametrize("kind", [*DESIGNS, Blown])
def test_one_record_moves_the_measurements_by_no_more_than_the_noise_is_for(kind: type[Design]) -> None:
    rng = np.random.default_rng(4)
    n, d, s, norm = 6, 60, 3, 2.0
    design = kind(9, d, rng)
    for _ in range(30):
        rows, other = sparse_rows(rng, n, d, s, norm), sparse_rows(rng, n, d, s, norm)
        swapped = rows.copy().tolil()
        swapped[[2]] = other[[2]]
        moved = measured_mean(rows, design, 1.5 * norm) - measured_mean(swapped.tocsr(), design, 1.5 * norm)
        assert np.linalg.norm(moved) <= 3 * norm / n * (1 + 1e-12)


def test_measured_rows_are_only_shortened_where_they_are_too_long() -> None:
    rng = np.random.default_rng(5)
    rows = one_hot(rng, 500, 3_000, 3)
    design = CosineDesign(600, 3_000, rng)
    padded = np.pad(mean_of(rows), (0, design.size - 3_000))
    assert measured_mean(rows, design, 1.5) == pytest.approx(design.apply(padded), abs=1e-12)


def test_too_many_measurements_are_plain_noise() -> None:
    rng = np.random.default_rng(6)
    rows = sparse_rows(rng, 200, 100, 2)
    assert not recovers(measurements_wanted(200, 100, 2, 4.0, 1e-6), 100)
    found = Recovery(1.0, 2, 0.5, 4.0, 1e-6)(rows, VectorNoise(1).at(0), rng)
    assert (found == Gaussian(1.0, 2, 0.5)(rows, VectorNoise(1).at(0), rng)).all()


def test_what_comes_out_too_long_becomes_zero() -> None:
    rng = np.random.default_rng(7)
    rows = sparse_rows(rng, 5, 400, 2)
    noisy = Recovery(1.0, 2, multiplier=500.0, design=CosineDesign(40, 400, rng))(rows, VectorNoise(1).at(0), rng)
    quiet = Recovery(1.0, 2, multiplier=0.0, design=CosineDesign(40, 400, rng))(rows, VectorNoise(1).at(0), rng)
    assert not noisy.any()
    assert 0 < np.linalg.norm(quiet) <= 2


def test_noise_in_the_measurements_is_made_for_rows_half_as_long_again() -> None:
    rng = np.random.default_rng(8)
    design = CosineDesign(2_000, 4_000, rng)
    rows = sparse_rows(rng, 4, 4_000, 2)

    class Seen(CosineDesign):
        def solve(self, measured: np.ndarray) -> np.ndarray:
            seen.append(measured.copy())
            return super().solve(measured)

    seen: list[np.ndarray] = []
    design.__class__ = Seen
    Recovery(1.0, 2, multiplier=2.0, design=design)(rows, VectorNoise(1).at(0), rng)
    noise = seen[0] - measured_mean(rows, design, 1.5)
    assert noise.std() == pytest.approx(2.0 * 3 * 1.0 / 4, rel=0.05)
