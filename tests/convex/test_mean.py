"""Private means: what one record moves, how much noise that gets, what comes out, and what the result says."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dprec.convex import private_mean
from dprec.convex.release.measurements import bounded_rows, mean_of
from dprec.convex.release.mechanisms import Gaussian, Laplace, LaplaceProjection, Projection, VectorNoise
from dprec.convex.release.regimes import gaussian_multiplier, regime
from dprec.errors import UserError
from tests.convex.support import sparse_rows
from tests.studies import load

study = load("convex")
drawn_mean, drawn_rows, error = study.drawn_mean, study.drawn_rows, study.error


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


def test_rows_within_the_bounds_are_left_alone() -> None:
    rows = sparse_rows(np.random.default_rng(0), 20, 30, 4, norm=0.99)
    assert (bounded_rows(rows, 1.0, 4) != rows).nnz == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e200])
def test_an_unfit_record_counts_as_zero(bad: float) -> None:
    found = bounded_rows(np.array([[bad, 1.0], [0.0, 0.5]]), 1.0, 2)
    assert found.toarray().tolist() == [[0.0, 0.0], [0.0, 0.5]]


def test_repeated_entries_count_together() -> None:
    twice = sparse.csr_array((np.array([3.0, 3.0]), np.array([1, 1]), np.array([0, 2])), shape=(1, 3))
    assert bounded_rows(twice, 1.0, 1).toarray().tolist() == [[0.0, 1.0, 0.0]]
    assert twice.nnz == 2  # what the user gave stays as it was


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


def test_projection_beats_plain_noise_tenfold_at_a_thousand_records() -> None:
    d, s, z = 200_000, 8, gaussian_multiplier(1.0, 1e-6)
    mean = drawn_mean(1_000, d, s, np.random.default_rng(0))
    assert error(Gaussian(1.0, s, z), mean, 1_000) > 10 * error(Projection(1.0, s, z), mean, 1_000)


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
