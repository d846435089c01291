"""What EANA reveals, which has no ε: users who alone read a row, readers of each row, and the bounds of its paper.

A row that only one user reads changes if and only if that user is in the data. The paper's bounds (Ning et al., 2022)
assume a linear loss, one pass, and a step for each user. Then C other readers of a row add C noise terms, and more
readers hide one user's share better. Theorem 3.1 uses the rarest row for all rows and users, Equation 9 each user's own
rows. The printed divergence is right for neither direction, so this file computes the exact one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

ORDERS = np.concatenate([np.arange(1.05, 10, 0.05), np.arange(10, 200, 0.5), np.geomspace(200, 20_000, 200)])
FEW_ORDERS = ORDERS[::8]  # for bounds of every single user
QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)


def added(alpha: Any, count: Any, x: float = 1.0, sigma: float = 1.0, width: float = 1.0) -> np.ndarray:
    """Return D_α(with a user ‖ without): the user adds norm x to `width` numbers that `count` others touch each.

    It is the larger of the two directions, and ∞ from the order count + 1 on.

    >>> round(float(added(5.0, count=20)), 3), float(added(5.0, count=0))
    (0.16, inf)
    """
    alpha, count = np.broadcast_arrays(np.asarray(alpha, dtype=float), np.asarray(count, dtype=float))
    finite = (count > 0) & (alpha < count + 1)
    alpha, count = np.where(finite, alpha, 2.0), np.where(finite, count, 2.0)
    left = count + 1 - alpha
    logs = np.log(count / left) / (2 * (alpha - 1)) - 0.5 * np.log1p(1 / count)
    return np.where(finite, alpha * x**2 / (2 * left * sigma**2) + width * logs, np.inf)


def epsilons(renyi: np.ndarray, orders: np.ndarray, delta: float) -> np.ndarray:
    """Return the ε at this δ of Rényi bounds (..., orders).

    >>> round(float(epsilons(ORDERS / 2, ORDERS, 1e-5)), 2)  # of a Gaussian of noise multiplier 1
    4.73
    """
    found = renyi + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return np.maximum(0.0, found.min(axis=-1))


def revealed(user: np.ndarray, row: np.ndarray, widths: np.ndarray, sigma: float, delta: float) -> dict[str, Any]:
    """Return what the tables of a run under EANA reveal. All figures are exact, so none is private.

    Args:
        user: (n,) distinct pairs of a user, numbered from 0 without gaps
        row: (n,) and a row that this user reads.
        widths: (rows,) how many numbers each row has.
        sigma: noise multiplier of the gradients.
        delta: δ of the bounds.

    >>> found = revealed(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1]), np.array([4, 4, 4]), 1.0, 1e-5)
    >>> found["users_alone"], found["rows_of_one_user"], found["rows_unread"], found["users_of_a_row"]
    (1, 1, 1, [1, 1, 1, 3, 3])
    """
    readers = np.bincount(row, minlength=len(widths))
    others = readers[row] - 1
    count = int(user.max(initial=-1)) + 1
    least = np.full(count, np.inf)
    np.minimum.at(least, user, others)
    numbers = np.bincount(user, weights=widths[row], minlength=count)
    rarest = float(least.min(initial=np.inf))
    theorem = epsilons(added(ORDERS, rarest, 1.0, sigma, float(numbers.max(initial=0))), ORDERS, delta)
    each = np.median(_of_users(user, others, widths[row], least, sigma, delta)) if count else math.inf
    quantiles = np.quantile(readers[readers > 0], QUANTILES, method="nearest").tolist() if count else []
    return {
        "users": count,
        "users_alone": int((least == 0).sum()),
        "rows": len(widths),
        "rows_unread": int((readers == 0).sum()),
        "rows_of_one_user": int((readers == 1).sum()),
        "users_of_a_row": quantiles,
        "delta": delta,
        **{
            f"epsilon_{name}": float(value) if np.isfinite(value) else None
            for name, value in (("theorem_3_1", theorem), ("equation_9_median", each))
        },
    }


def _of_users(
    user: np.ndarray, others: np.ndarray, widths: np.ndarray, least: np.ndarray, sigma: float, delta: float
) -> np.ndarray:
    """Return Equation 9's ε of each user (users,); the first term assumes the whole norm in the rarest row."""
    renyi = np.empty((len(least), len(FEW_ORDERS)))
    for place, alpha in enumerate(FEW_ORDERS):
        first, logs = added(alpha, least, 1.0, sigma, 0.0), added(alpha, others, 0.0, sigma, 1.0)
        renyi[:, place] = first + np.bincount(user, weights=logs * widths, minlength=len(least))
    return epsilons(renyi, FEW_ORDERS, delta)


def lines(found: dict[str, Any]) -> list[str]:
    """Return these figures as sentences for the owner of the data."""
    if not found:
        return []
    shown = {key: "∞" if value is None else value for key, value in found.items()}
    theorem, half = (
        value if isinstance(value, str) else f"{value:.3g}"
        for value in (shown["epsilon_theorem_3_1"], shown["epsilon_equation_9_median"])
    )
    return [
        f"EANA reveals (exact, not private): {found['users_alone']:,} of {found['users']:,} users read a row that "
        f"nobody else reads; of {found['rows']:,} rows, {found['rows_unread']:,} are read by nobody and "
        f"{found['rows_of_one_user']:,} by one user",
        "users of a row that is read (least, a tenth, median, nine tenths, most): "
        + ", ".join(f"{value:,.0f}" for value in found["users_of_a_row"]),
        f"the paper's bounds, for a linear loss and a step for each user: ε = {theorem} for all (Theorem 3.1), {half} "
        f"for the median user (Equation 9), at δ = {found['delta']:.2g}",
    ]
