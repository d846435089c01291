"""Theorem 3.1 against divergences integrated numerically."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import integrate, stats

from dprec.auditing import eana

CASES = [  # order, users, and what one more adds to how much noise
    (1.5, 20, 1, 1),
    (2, 300, 0.3, 0.5),
    (5, 20, 0, 2),  # one who adds nothing, but noise
    (15, 20, 0.3, 0.5),  # near the order at which one direction is infinite
    (15, 300, 1, 1),
]


def divergence(alpha: float, first: stats.rv_continuous, second: stats.rv_continuous) -> float:
    """D_α(first ‖ second) by quadrature."""
    width = 14 * max(first.std(), second.std())

    def density(y: float) -> float:
        return float(np.exp(alpha * first.logpdf(y) + (1 - alpha) * second.logpdf(y)))

    peak = integrate.quad(density, -20 * width, 20 * width, limit=2000, points=[-width, 0.0, width], epsabs=0)[0]
    return float(np.log(peak) / (alpha - 1))


@pytest.mark.full
@pytest.mark.parametrize(("alpha", "m", "x", "sigma"), CASES)
def test_both_directions_are_the_divergences_of_the_outputs(alpha: float, m: int, x: float, sigma: float) -> None:
    without, with_user = stats.norm(0, sigma * m**0.5), stats.norm(x, sigma * (m + 1) ** 0.5)
    assert eana.added(alpha, m, x, sigma) == pytest.approx(divergence(alpha, with_user, without), rel=1e-6, abs=1e-9)
    assert eana.removed(alpha, m, x, sigma) == pytest.approx(divergence(alpha, without, with_user), rel=1e-6, abs=1e-9)


def test_the_numbers_of_the_theorem() -> None:
    """d0 = 10, L = 1: ten coordinates, of which the first takes the whole vector."""
    assert eana.added(5.0, 20) == pytest.approx(0.160, abs=5e-4)
    assert eana.printed(5.0, 20) == pytest.approx(0.215, abs=5e-4)
    for alpha in (1.5, 3.0, 10.0):
        others = divergence(alpha, stats.norm(0, 51**0.5), stats.norm(0, 50**0.5))
        first = divergence(alpha, stats.norm(1, 51**0.5), stats.norm(0, 50**0.5))
        assert eana.added(alpha, 50, width=10) == pytest.approx(first + 9 * others, rel=1e-6)


def test_the_printed_bound_holds_and_is_loose() -> None:
    alpha = np.linspace(1.01, 19.9, 400)
    for sigma in (0.1, 1.0, 10.0):
        exact = np.maximum(eana.added(alpha, 20, sigma=sigma), eana.removed(alpha, 20, sigma=sigma))
        assert (eana.printed(alpha, 20, sigma=sigma) >= exact).all()
    assert float(eana.printed(5.0, 20) / eana.added(5.0, 20)) > 1.3


def test_a_rare_item_costs_a_user_more_than_popular_ones() -> None:
    popular = eana.of_user(2.0, [1000] * 9, [1 / 3] * 9, sigma=1.0)
    one_rare = eana.of_user(2.0, [1000] * 8 + [3], [1 / 3] * 9, sigma=1.0)
    assert one_rare > 10 * popular
    assert np.isinf(eana.of_user(2.0, [1000, 0], [0.5, 0.5], sigma=1.0))
    equal = eana.of_user(2.0, [50] * 4, [0.5] * 4, sigma=1.0)
    assert equal == pytest.approx(float(eana.added(2.0, 50, width=4)))  # equation 9 implies equation 1
