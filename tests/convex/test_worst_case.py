"""The lower bounds' data: what its rows are, and that the mechanisms keep their bounds on it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dprec.convex.losses import block_records
from dprec.convex.release.measurements import mean_of
from dprec.convex.release.mechanisms import Gaussian, Projection, VectorNoise
from dprec.convex.release.regimes import gaussian_multiplier


@pytest.mark.parametrize(
    ("records", "dimension", "sparsity", "bias"), [(40, 24, 4, 1.0), (7, 30, 3, 0.5), (5, 5, 5, 1.0), (1, 9, 1, 0.0)]
)
def test_a_record_has_its_entries_in_one_block_and_norm_one(
    records: int, dimension: int, sparsity: int, bias: float
) -> None:
    rows = block_records(records, dimension, sparsity, np.random.default_rng(1), bias).toarray()
    assert np.allclose(np.linalg.norm(rows, axis=1), 1)
    for row in rows:
        (places,) = row.nonzero()
        assert len(places) == sparsity
        assert len(set(places // sparsity)) == 1
    if bias == 1:
        assert np.abs(rows.mean(0)).sum() == pytest.approx(math.sqrt(sparsity))


@pytest.mark.parametrize("records", [20, 400, 20_000])
def test_projection_keeps_its_bound_on_hard_data_and_is_never_worse_than_the_noise(records: int) -> None:
    """‖ẑ - z̄‖² ≤ 2√s ‖ξ‖∞ and ‖ẑ - z̄‖ ≤ ‖ξ‖, for the noise of the same seed."""
    sparsity, dimension, rng = 4, 2_000, np.random.default_rng(3)
    rows = block_records(records, dimension, sparsity, rng)
    mean, multiplier = mean_of(rows), gaussian_multiplier(1.0, 1e-6)
    noisy = Gaussian(1.0, sparsity, multiplier)(rows, VectorNoise(5), rng) - mean
    found = Projection(1.0, sparsity, multiplier)(rows, VectorNoise(5), rng) - mean
    assert np.linalg.norm(found) <= np.linalg.norm(noisy) * (1 + 1e-6)
    assert np.square(found).sum() <= 2 * math.sqrt(sparsity) * np.abs(noisy).max() * (1 + 1e-6)


def test_what_makes_no_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="make no blocks"):
        block_records(3, 4, 5, np.random.default_rng(0))
