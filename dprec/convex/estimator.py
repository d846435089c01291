"""The common base of the estimators: parameters that can be read, set and cloned, and scores of a linear model."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from scipy import optimize, sparse
from scipy.special import expit

from dprec.accounting.ledger import Ledger
from dprec.convex.measurements import bounded_rows
from dprec.errors import UserError

Model = TypeVar("Model", bound="Estimator")


class Estimator:
    """A linear model with the interface of scikit-learn: nothing is checked or computed before `fit`.

    A subclass is a dataclass whose fields are its arguments.

    A row longer than `norm` is scaled down, in `fit` and in `predict`.
    """

    coef_: np.ndarray  # (d,)
    ledger_: Ledger
    guarantee_: str
    n_features_in_: int

    loss: str
    norm: float
    sparsity: int
    target_bound: float

    @classmethod
    def _names(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {name: getattr(self, name) for name in self._names()}

    def set_params(self: Model, **params: Any) -> Model:
        """Set arguments by name; return self."""
        for name, value in params.items():
            if name not in self._names():
                raise UserError(
                    f"{type(self).__name__} has no argument '{name}': give one of {', '.join(self._names())}"
                )
            setattr(self, name, value)
        return self

    def decision_function(self, features: Any) -> np.ndarray:
        """Return a score for each row: the log-odds of a click under the logistic loss, a number under the squared."""
        if not hasattr(self, "coef_"):
            raise UserError(f"this {type(self).__name__} is not fitted: call fit first")
        rows = bounded_rows(features, self.norm, self.sparsity)
        if rows.shape[1] != self.n_features_in_:
            raise UserError(f"the features have {rows.shape[1]} columns: give {self.n_features_in_}, as many as in fit")
        return rows @ self.coef_

    def predict(self, features: Any) -> np.ndarray:
        """Return 0 or 1 for each row, a number under the squared loss."""
        scores = self.decision_function(features)
        return (scores > 0).astype(np.int64) if self._loss().classes else scores

    def predict_proba(self, features: Any) -> np.ndarray:
        """Return the probabilities of 0 and of 1 for each row, (rows, 2)."""
        if not self._loss().classes:
            raise UserError("loss='squared' predicts numbers, not probabilities: use predict, or loss='logistic'")
        chance = expit(self.decision_function(features))
        return np.stack([1 - chance, chance], axis=1)

    def _loss(self) -> Loss:
        return find_loss(self.loss, self.target_bound)


# Losses of linear models, and the minimum of a regularised mean loss, with a bound on the distance to it.


@dataclass(frozen=True)
class Logistic:
    """Cross-entropy of a click, 0 or 1: ln(1 + e^s) - y s at the score s."""

    name = "logistic"
    classes = True
    convex = True
    steepest = 1.0  # |derivative by the score|
    bend = 0.25  # second derivative
    at_zero = math.log(2)

    def value(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return np.logaddexp(0.0, scores) - targets * scores

    def slope(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return expit(scores) - targets

    def curvature(self, scores: np.ndarray) -> np.ndarray:
        chance = expit(scores)
        return chance * (1 - chance)

    def steepness(self, largest_score: float) -> float:
        return self.steepest

    def largest(self, largest_score: float) -> float:
        return math.log1p(math.exp(-largest_score)) + largest_score


@dataclass(frozen=True)
class Squared:
    """Half the squared error of a number; targets are clipped to ±`bound`."""

    bound: float = 1.0
    name = "squared"
    classes = False
    convex = True
    bend = 1.0

    @property
    def at_zero(self) -> float:
        return self.bound**2 / 2

    def value(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return (scores - targets) ** 2 / 2

    def slope(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return scores - targets

    def curvature(self, scores: np.ndarray) -> np.ndarray:
        return np.ones_like(scores)

    def steepness(self, largest_score: float) -> float:
        return largest_score + self.bound

    def largest(self, largest_score: float) -> float:
        return (largest_score + self.bound) ** 2 / 2


@dataclass(frozen=True)
class Sigmoid:
    """The probability of a wrong decision about a click, σ(∓s): bounded, smooth, robust to outliers, and not convex."""

    name = "sigmoid"
    classes = True
    convex = False
    steepest = 0.25
    bend = 0.1
    at_zero = 0.5

    def value(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        return expit((1 - 2 * targets) * scores)

    def slope(self, scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
        chance = expit(scores)
        return (1 - 2 * targets) * chance * (1 - chance)

    def steepness(self, largest_score: float) -> float:
        return self.steepest

    def largest(self, largest_score: float) -> float:
        return 1.0


ConvexLoss = Logistic | Squared  # the losses whose minimum can be found and checked
Loss = ConvexLoss | Sigmoid


def find_loss(name: str, target_bound: float) -> Loss:
    """Return the loss of this name."""
    if not (math.isfinite(target_bound) and target_bound > 0):
        raise UserError(f"target_bound is {target_bound}: give the largest absolute value of a target, above 0")
    losses: dict[str, Loss] = {loss.name: loss for loss in (Logistic(), Squared(target_bound), Sigmoid())}
    if name not in losses:
        raise UserError(f"loss is '{name}': give one of {', '.join(losses)}")
    return losses[name]


def find_convex_loss(name: str, target_bound: float) -> ConvexLoss:
    """Return the loss of this name, if its minimum can be found."""
    loss = find_loss(name, target_bound)
    if isinstance(loss, Sigmoid):
        raise UserError(f"loss is '{name}', which is not convex: give {Logistic.name} or {Squared.name}")
    return loss


def bounded_targets(targets: object, records: int, loss: Loss) -> np.ndarray:
    """Return one target for each record: 0 or 1 for clicks, clipped to the loss's bound for numbers."""
    try:
        found = np.asarray(targets, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError("the targets are not numbers: give 0 or 1 for each record, or a number") from None
    if found.shape != (records,):
        raise UserError(f"there are {records} records and targets of shape {found.shape}: give one for each record")
    if isinstance(loss, Squared):
        return np.clip(np.nan_to_num(found, nan=0.0), -loss.bound, loss.bound)
    if not np.isin(found, (0.0, 1.0)).all():
        raise UserError(f"loss '{loss.name}' takes only targets 0 and 1: give these, or loss='squared'")
    return found


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
