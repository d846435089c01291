"""The minimum of a regularised mean loss, with a bound on the distance between answer and minimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import optimize, sparse

from dprec.convex.losses import ConvexLoss, Loss
from dprec.errors import UserError


@dataclass(frozen=True)
class Minimum:
    """Weights w, and the residual r = ∇F_λ(w), which proves ‖w - w*‖₂ ≤ ‖r‖₂ / λ."""

    weights: np.ndarray  # (d,)
    residual: np.ndarray  # (d,)


def risk(rows: sparse.csr_array, targets: np.ndarray, loss: Loss, weights: np.ndarray) -> float:
    """Return F(w), the mean loss."""
    return float(loss.value(rows @ weights, targets).mean())


def gradient(rows: sparse.csr_array, targets: np.ndarray, loss: Loss, weights: np.ndarray) -> np.ndarray:
    """Return ∇F(w)."""
    return rows.T @ loss.slope(rows @ weights, targets) / rows.shape[0]


def minimum(
    rows: sparse.csr_array, targets: np.ndarray, loss: ConvexLoss, regularization: float, largest_residual: float,
    order: int,
) -> Minimum:  # fmt: skip
    """Return weights whose residual is at most `largest_residual` in the norm of this order, 1 or 2.

    Raises UserError if rounding keeps the solver from it, because the privacy proof relies on this bound.
    """
    # A column without entries has weight and residual 0, so the solver leaves it out.
    columns = np.unique(rows.indices)
    narrow = rows[:, columns] if len(columns) < rows.shape[1] else rows
    transposed = narrow.T.tocsr()
    records = rows.shape[0]

    def value_and_gradient(w: np.ndarray) -> tuple[float, np.ndarray]:
        scores = narrow @ w
        value = float(loss.value(scores, targets).mean()) + regularization / 2 * float(w @ w)
        return value, transposed @ loss.slope(scores, targets) / records + regularization * w

    def curved(w: np.ndarray, direction: np.ndarray) -> np.ndarray:
        bent = loss.curvature(narrow @ w) * (narrow @ direction)
        return transposed @ bent / records + regularization * direction

    goal = largest_residual / (max(1, len(columns)) ** 0.5 if order == 1 else 1.0)
    with np.errstate(over="ignore"):
        found = optimize.minimize(
            value_and_gradient, np.zeros(len(columns)), jac=True, hessp=curved, method="trust-ncg",
            options={"gtol": goal, "initial_trust_radius": 1.0, "max_trust_radius": 1e6, "maxiter": 500},
        )  # fmt: skip
    weights, residual = np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
    weights[columns], residual[columns] = found.x, value_and_gradient(found.x)[1]
    reached = float(np.linalg.norm(residual, ord=order))
    if not reached <= largest_residual:
        raise UserError(
            f"the minimum was found to {reached:.2g}, not to {largest_residual:.2g}: raise regularization or tolerance"
        )
    return Minimum(weights, residual)
