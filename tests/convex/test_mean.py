"""Private means: sensitivity, noise and bounds, projections, ℓ1-recovery, data that lower bounds are made of."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog

from dprec.convex import private_mean
from dprec.convex.mean import gaussian_multiplier, regime
from dprec.convex.measurements import (
    Design,
    bounded_rows,
    least_l1,
    mean_of,
    measured_mean,
    project_l1,
    project_linf,
    shrunk,
)
from dprec.convex.mechanisms import Gaussian, Laplace, LaplaceProjection, Projection, VectorNoise
from dprec.errors import UserError
from tests.convex.support import sparse_rows
from tests.studies import load

study = load("convex")
block_records, drawn_mean, drawn_rows, error = study.block_records, study.drawn_mean, study.drawn_rows, study.error


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 8), st.integers(1, 10), st.integers(1, 4), st.floats(0.1, 10), st.integers(0, 2**32 - 1))
def test_one_record_moves_the_mean_by_no_more_than_the_noise_is_for(
    n: int, d: int, s: int, norm: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    raw = 10.0 ** rng.uniform(-3, 3) * rng.standard_normal((n, d))  # dense, and of any length
    other = raw.copy()
    other[0] = -raw[0]
    moved = mean_of(bounded_rows(raw, norm, s)) - mean_of(bounded_rows(other, norm, s))
    assert np.linalg.norm(moved) <= 2 * norm / n * (1 + 1e-12)
    assert np.abs(moved).sum() <= 2 * norm * math.sqrt(s) / n * (1 + 1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_an_unfit_record_counts_as_zero(bad: float) -> None:
    found = bounded_rows(np.array([[bad, 1.0], [0.0, 0.5]]), 1.0, 2)
    assert found.toarray().tolist() == [[0.0, 0.0], [0.0, 0.5]]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-8), (1.0, 1e-6), (20.0, 1e-5)])
def test_the_gaussian_is_the_analytic_one(epsilon: float, delta: float) -> None:
    def exact(sigma: float) -> mpmath.mpf:
        with mpmath.workdps(40):
            s, e = mpmath.mpf(sigma), mpmath.mpf(epsilon)
            return mpmath.ncdf(1 / (2 * s) - e * s) - mpmath.exp(e) * mpmath.ncdf(-1 / (2 * s) - e * s)

    sigma = gaussian_multiplier(epsilon, delta)
    assert exact(sigma) <= delta < exact(sigma * (1 - 1e-3))


@pytest.mark.parametrize(("kind", "spread"), [(Gaussian, 1.0), (Laplace, math.sqrt(2) * math.sqrt(3))])
def test_noise_is_made_for_the_sensitivity(kind: type[Gaussian], spread: float) -> None:
    found = kind(norm=2.0, sparsity=3, multiplier=1.5).of_mean(np.zeros(200_000), 50, VectorNoise(0).at(0))
    assert found.std() == pytest.approx(1.5 * 2 * 2.0 / 50 * spread, rel=0.01)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_the_lowest_bits_of_a_release_tell_nothing(delta: float) -> None:
    """0 + noise would be a float times the scale always, 0.01 + noise only five times in six: no noise hides that."""
    n, scale = 100, 2 / 100 * (1.0 if delta == 0 else gaussian_multiplier(1.0, delta))
    unit = 2.0 ** (math.floor(math.log2(scale)) - 20)
    for first in (0.0, 1.0):
        rows = np.zeros((n, 40))
        rows[0, 0] = first
        rows[0, 1:] = first / 7
        found = private_mean(rows, sparsity=10**6, epsilon=1.0, delta=delta, mechanism="plain").value
        assert (np.round(found / unit) * unit == found).all()


def test_the_bounds_hold_in_every_regime() -> None:
    rng = np.random.default_rng(0)
    seen = set()
    for n in (30, 1_000, 10**4, 10**6):
        mean, z = drawn_mean(n, 20_000, 4, rng), gaussian_multiplier(1.0, 1e-6)
        for pure in (False, True):
            bounds = regime(n, 20_000, 4, 1.0, 1.0 if pure else z, pure)
            kinds = (Laplace, LaplaceProjection) if pure else (Gaussian, Projection)
            seen.add(bounds.name)
            # The dense bound is √E‖ξ‖² itself, and three draws differ from it by little.
            assert error(kinds[0](1.0, 4, 1.0 if pure else z), mean, n) <= bounds.dense * 1.02
            assert error(kinds[1](1.0, 4, 1.0 if pure else z), mean, n) <= min(bounds.sparse, bounds.dense) * 1.02
    assert seen == {"zero", "sparse", "dense"}


def test_it_says_which_it_picked_and_what_that_guarantees() -> None:
    rows = drawn_rows(2_000, 40_000, 4, np.random.default_rng(0))
    found = private_mean(rows, sparsity=4, epsilon=1.0, delta=1e-6)
    assert (found.mechanism, found.why.split(":")[0]) == ("projection of Gaussian noise", "sparse regime")
    assert found.guarantee.startswith("(1, 1e-06)-differential privacy per record, where neighbouring data sets differ")
    assert 0.99 < found.ledger.epsilon(1e-6) <= 1.0
    assert "the number of records (2,000), the number of columns, and every argument but the data" in found.guarantee
    assert "other results from the same records" in found.guarantee
    pure = private_mean(rows, sparsity=4, epsilon=0.5)
    assert (pure.mechanism, pure.ledger.epsilon(0.0)) == ("projection of Laplace noise", 0.5)
    few = private_mean(rows[:10], sparsity=4, epsilon=1.0, delta=1e-6)
    assert few.mechanism == "zero"
    assert not few.value.any()
    assert not few.ledger.events
    assert private_mean(rows, sparsity=4, epsilon=1.0, mechanism="plain").mechanism == "plain Laplace"


def test_a_seed_repeats_and_is_not_private() -> None:
    rows = drawn_rows(500, 400, 4, np.random.default_rng(0))
    same = [private_mean(rows, sparsity=4, epsilon=1.0, seed=3) for _ in range(2)]
    assert (same[0].value == same[1].value).all()
    assert same[0].guarantee.startswith("not private")
    fresh = [private_mean(rows, sparsity=4, epsilon=1.0).value for _ in range(2)]
    assert (fresh[0] != fresh[1]).any()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epsilon": 0.0}, "epsilon is 0.0"),
        ({"delta": 1.0}, "delta is 1.0"),
        ({"sparsity": 0}, "sparsity is 0"),
        ({"sparsity": math.nan, "mechanism": "plain", "delta": 1e-6}, "sparsity is nan"),
        ({"sparsity": math.inf}, "sparsity is inf"),
        ({"norm": -1.0}, "norm is -1.0"),
        ({"norm": 1e-170}, "norm is 1e-170"),
        ({"norm": np.float16(1e-3), "delta": 0.01, "epsilon": 8.0, "mechanism": "plain"}, "give Python numbers"),
        ({"mechanism": "magic"}, "mechanism is 'magic'"),
        ({"mechanism": "recovery"}, "needs delta above 0"),
        ({"vectors": "rows"}, "not a matrix of numbers"),
        ({"vectors": np.zeros((0, 3))}, "shape (0, 3)"),
        ({"seed": -1}, "noise_seed is -1"),
    ],
)
def test_mistakes_cost_one_line(change: dict, says: str) -> None:
    arguments = {"vectors": np.eye(3), "sparsity": 1, "epsilon": 1.0, "delta": 0.0} | change
    with pytest.raises(UserError) as error:
        private_mean(arguments.pop("vectors"), **arguments)
    assert says in str(error.value)


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


class Blown(Design):
    """A design that is no isometry of anything: some columns are a hundred times as long as others."""

    def columns(self, places: np.ndarray) -> np.ndarray:
        return super().columns(places) * np.where(places % 3 == 0, 100.0, 1.0)


@pytest.mark.parametrize("size", [37, 64])
def test_a_design_is_one_matrix_in_all_its_forms(size: int) -> None:
    design = Design(12, size, np.random.default_rng(0))
    matrix = np.stack([design.apply(row) for row in np.eye(design.size)], axis=1)  # (m, size)
    assert matrix.shape == (12, design.size)
    assert np.allclose(design.columns(np.arange(design.size)), matrix)
    assert np.allclose(np.stack([design.adjoint(row) for row in np.eye(12)]), matrix)
    assert np.allclose(matrix @ matrix.T @ np.stack([design.solve(row) for row in np.eye(12)], axis=1), np.eye(12))


def test_the_solver_agrees_with_linear_programming() -> None:
    rng = np.random.default_rng(2)
    design = Design(20, 64, rng)
    matrix, measured = design.columns(np.arange(64)), rng.standard_normal(20)
    both = np.concatenate([matrix, -matrix], axis=1)
    least = linprog(np.ones(128), A_eq=both, b_eq=measured, bounds=(0, None), method="highs").fun
    found = least_l1(design, measured, tolerance=1e-4, steps=20_000)
    assert np.allclose(design.apply(found), measured)
    assert least * (1 - 1e-9) <= np.abs(found).sum() <= least * (1 + 1e-3)


@pytest.mark.parametrize("kind", [Design, Blown])
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
