"""What EANA reveals, beside counts and divergences that are worked out on their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from dprec.sparsity.revealed import FEW_ORDERS, epsilons, lines, revealed

DELTA, WIDTH = 1e-5, 3


def divergence(alpha: float, others: int, x: float, sigma: float) -> float:
    """D_α(N(x, (m + 1)σ²) ‖ N(0, mσ²)), by quadrature."""
    more, fewer = stats.norm(x, sigma * math.sqrt(others + 1)), stats.norm(0, sigma * math.sqrt(others))
    tilted = np.linspace(-40, 40, 8)  # where to look for the peak, in standard deviations
    found, _ = integrate.quad(
        lambda z: math.exp(alpha * more.logpdf(z) + (1 - alpha) * fewer.logpdf(z)), -700, 700,
        points=tilted * sigma * math.sqrt(others), limit=500,
    )  # fmt: skip
    return math.log(found) / (alpha - 1)


def pairs(readers: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Row j is read by the first readers[j] users."""
    row = np.repeat(np.arange(len(readers)), readers)
    return np.concatenate([np.arange(count) for count in readers]), row


def test_a_row_of_one_user_gives_them_away() -> None:
    """Both bounds are infinite: of everybody by the theorem, of this user by Equation 9, not of the median user."""
    user, row = pairs([300, 300, 1, 0])
    found = revealed(user, row, np.full(4, WIDTH), 1.0, DELTA)
    assert (found["users_alone"], found["rows_of_one_user"], found["rows_unread"]) == (1, 1, 1)
    assert (found["users"], found["rows"], found["users_of_a_row"]) == (300, 4, [1, 1, 300, 300, 300])
    assert found["epsilon_theorem_3_1"] is None
    assert 0 < found["epsilon_equation_9_median"] < math.inf
    assert "1 of 300 users read a row that nobody else reads" in lines(found)[0]
    assert "ε = ∞ for all (Theorem 3.1)" in lines(found)[2]


def test_the_bounds_are_those_of_the_divergences() -> None:
    """All users read the same two rows; one number has the whole norm, and the others of these rows have none."""
    user, row = pairs([60, 60])
    found = revealed(user, row, np.full(2, WIDTH), 2.0, DELTA)
    orders = FEW_ORDERS[(FEW_ORDERS > 1.5) & (FEW_ORDERS < 40)]
    renyi = [divergence(a, 59, 1.0, 2.0) + (2 * WIDTH - 1) * divergence(a, 59, 0.0, 2.0) for a in orders]
    expected = float(epsilons(np.array(renyi), orders, DELTA))
    assert found["epsilon_equation_9_median"] == pytest.approx(expected, rel=0.01)
    assert found["epsilon_theorem_3_1"] == pytest.approx(expected, rel=0.01)  # all rows are alike


def test_more_users_of_a_row_hide_each_better() -> None:
    few, many = (revealed(*pairs([count, count]), np.full(2, WIDTH), 1.0, DELTA) for count in (50, 5000))
    for name in ("epsilon_theorem_3_1", "epsilon_equation_9_median"):
        assert many[name] < 0.5 * few[name]
