from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import stats

from dprec.auditing import exposure


@pytest.mark.parametrize(
    ("shape", "x"),
    [(-4.0, -25.0), (-4.0, 2.0), (0.0, -9.0), (0.7, -5.5), (0.7, -3.0), (3.0, -25.0), (3.0, -5.5), (3.0, 0.2)],
)
def test_the_distribution_function_is_right_far_below_where_scipy_ends(shape: float, x: float) -> None:
    with mpmath.workdps(60):
        density = lambda t: 2 * mpmath.npdf(t) * mpmath.ncdf(shape * t)  # noqa: E731
        exact = mpmath.log(mpmath.quad(density, [-mpmath.inf, x - 4, x - 1, x - 0.2, x]))
    found = exposure.log_below(np.array([1.0 + 2 * x]), shape, place=1.0, width=2.0)
    assert found[0] == pytest.approx(float(exact), rel=1e-6)


def test_a_loss_nobody_learned_has_the_exposure_of_chance() -> None:
    """Uniform ranks: P[exposure > b] is 2^-b, by rank and by fit."""
    draw = np.random.default_rng(0)
    references, losses = draw.normal(5, 2, 16_384), draw.normal(5, 2, 4000)
    for bits in (exposure.by_rank(losses, references), exposure.by_fit(losses, references)):
        for b in (1, 2, 4):
            share = 2.0**-b
            assert (bits > b).mean() == pytest.approx(share, abs=4 * (share / 4000) ** 0.5)


def test_ranks_end_where_the_references_do_and_the_fit_goes_on() -> None:
    references = stats.skewnorm(3, 1, 2).rvs(16_384, random_state=1)
    losses = np.array([references.min() - 1, references.min() - 4])
    assert exposure.by_rank(losses, references).tolist() == [14.0, 14.0]
    first, second = exposure.by_fit(losses, references)
    assert 14 < first < second


@pytest.mark.parametrize(("draws", "low", "high"), [("skewnorm", 0.0, 0.02), ("bimodal", 0.05, 1.0)])
def test_a_fit_that_does_not_fit_says_so(draws: str, low: float, high: float) -> None:
    draw = np.random.default_rng(2)
    both = np.concatenate([draw.normal(-4, 1, 2000), draw.normal(4, 1, 2000)])
    references = stats.skewnorm(3).rvs(4000, random_state=2) if draws == "skewnorm" else both
    assert low <= exposure.misfit(exposure.by_fit(references, references)) <= high


def test_a_model_that_tells_nobody_apart_exposes_nobody() -> None:
    references, losses = np.full(200, 3.0), np.full(5, 3.0)
    assert (exposure.by_rank(losses, references) <= 0).all()
    assert (exposure.by_fit(losses, references) == 0).all()
