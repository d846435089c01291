"""Learn without privacy and release the result with noise: one release, no composition of steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dprec.accounting.ledger import Event, Ledger
from dprec.convex.estimator import ConvexLoss, Estimator, bounded_targets, find_convex_loss, minimum
from dprec.convex.mean import check_budget, gaussian_multiplier, promise
from dprec.convex.measurements import bounded_rows, project_linf
from dprec.convex.mechanisms import VectorNoise, on_grid
from dprec.errors import UserError, refuse_other_kinds

Model = TypeVar("Model", bound="OutputPerturbation")


@dataclass(eq=False)
class OutputPerturbation(Estimator):
    """A private linear model: the regularised minimum plus noise, projected in ℓ∞ onto the ball of all minima.

    If one record is replaced, w* = argmin F(w) + λ/2 ‖w‖² moves by at most 2L / λn in ℓ2, where L bounds the slope of a
    record's loss. The noise covers this and the solver's error: the code accepts w only if it finds a gradient of at
    most `tolerance` L / n. The entries of ŵ are then within 2 ‖ξ‖∞ of those of w. The noise in the score of a record
    with s entries grows only with ln d.

    For δ = 0 the noise is Laplace, for the move in ℓ1: at most 2√s L (1 + H/λ) / λn, where H bounds the curvature of a
    record's loss.

    Args:
        epsilon: ε of the budget.
        delta: δ of the budget; 0 for pure privacy.
        sparsity: the most nonzero entries of a row; choose it without looking at the data.
        regularization: λ; the default balances the noise against a minimum of norm `scale`.
        scale: the expected norm of the weights, for the default of `regularization`.
        loss: "logistic" with targets 0 and 1, or "squared" with targets up to ±`target_bound`.
        norm: the largest norm of a row; longer rows are scaled down.
        target_bound: the largest target of the squared loss.
        tolerance: the largest gradient at which the solver may stop, in units of L / n; the noise grows by as much.
        seed: makes the noise repeatable, and the result not private.

    >>> import numpy as np
    >>> from dprec.convex import OutputPerturbation
    >>> rng = np.random.default_rng(0)
    >>> features = np.eye(4)[rng.integers(4, size=20_000)]
    >>> clicked = rng.random(20_000) < features @ [0.9, 0.1, 0.5, 0.5]
    >>> model = OutputPerturbation(epsilon=1.0, delta=1e-6, sparsity=1, regularization=0.01).fit(features, clicked)
    >>> model.predict(np.eye(4)[:2]), model.guarantee_[:43]
    (array([1, 0]), '(1, 1e-06)-differential privacy per record,')
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    sparsity: int = 1
    regularization: float | None = None
    scale: float = 1.0
    loss: str = "logistic"
    norm: float = 1.0
    target_bound: float = 1.0
    tolerance: float = 0.01
    seed: int | None = None

    def fit(self: Model, features: Any, targets: Any) -> Model:
        """Learn from a row for each record and its target; return self."""
        refuse_other_kinds(type(self).__init__, self.get_params())
        check_budget(self.epsilon, self.delta)
        for name in ("scale", "tolerance"):
            if not 0 < getattr(self, name) < 1e30:  # beyond, products with its square overflow float64
                raise UserError(f"{name} is {getattr(self, name)}: give a number above 0 and below 1e30")
        loss = find_convex_loss(self.loss, self.target_bound)
        rows = bounded_rows(features, self.norm, self.sparsity)
        records, self.n_features_in_ = rows.shape
        wanted = bounded_targets(targets, records, loss)
        law = NoiseLaw(self, loss, records, self.n_features_in_)
        self.regularization_ = law.balanced() if self.regularization is None else self.regularization
        if not 0 < self.regularization_ < math.inf:
            raise UserError(
                f"regularization is {self.regularization}: give a number above 0; with 0 the noise would be infinite"
            )
        self.noise_scale_ = law.scale(self.regularization_)
        left = law.residual(self.regularization_)
        found = minimum(rows, wanted, loss, self.regularization_, left, order=law.order)
        self.ledger_ = Ledger()
        self.ledger_.record(law.event)
        noise = VectorNoise(self.seed).at(0)
        draw = noise.laplace if law.pure else noise.gaussian
        noisy = on_grid(found.weights + draw(self.n_features_in_, self.noise_scale_), self.noise_scale_)
        # No minimum is longer, because its value is at most that of w = 0.
        self.coef_ = project_linf(noisy, law.radius(self.regularization_))
        if loss.classes:
            self.classes_ = np.array([0, 1])
        self.guarantee_ = promise(f"a minimum with {law.name} noise", self.ledger_, self.delta, records, self.seed)
        return self


class NoiseLaw:
    """The noise that a regularised minimum needs, as a function of λ."""

    def __init__(self, model: OutputPerturbation, loss: ConvexLoss, records: int, dimension: int) -> None:
        self.model, self.loss, self.records, self.dimension = model, loss, records, dimension
        self.pure = model.delta == 0
        self.name, self.order = ("Laplace", 1) if self.pure else ("Gaussian", 2)
        self.multiplier = 1 / model.epsilon if self.pure else gaussian_multiplier(model.epsilon, model.delta)
        self.event = Event("bounded" if self.pure else "gaussian", self.multiplier, what="a regularised minimum")

    def radius(self, regularization: float) -> float:
        """The largest norm of a minimum: F_λ(w*) ≤ F_λ(0)."""
        return math.sqrt(2 * self.loss.at_zero / regularization)

    def steepness(self, regularization: float) -> float:
        """L: the longest gradient of a record at any minimum."""
        return self.model.norm * self.loss.steepness(self.model.norm * self.radius(regularization))

    def residual(self, regularization: float) -> float:
        """The largest gradient at which the solver may stop: in ℓ2, or for pure privacy in ℓ1, which bounds ℓ2 too."""
        return self.model.tolerance * self.steepness(regularization) / self.records

    def move(self, regularization: float) -> float:
        """The sensitivity of the solver's answer: in ℓ2, or in ℓ1 for pure privacy."""
        steep = self.steepness(regularization)
        across = 2 * steep / self.records * (1 + self.model.tolerance)  # λ times the move in ℓ2
        if not self.pure:
            return across / regularization
        bend = self.loss.bend * self.model.norm**2
        return math.sqrt(self.model.sparsity) * across * (1 + bend / regularization) / regularization

    def scale(self, regularization: float) -> float:
        return self.multiplier * self.move(regularization)

    def balanced(self) -> float:
        """λ with the smallest bound on the excess risk: 2 √s L ‖ξ‖∞ for the noise and λ D² / 2 for the regulariser."""
        largest = 1 + math.log(self.dimension) if self.pure else math.sqrt(2 * math.log(2 * self.dimension))

        def excess(regularization: float) -> float:
            noise = 2 * math.sqrt(self.model.sparsity) * self.steepness(regularization) * self.scale(regularization)
            return noise * largest + regularization * self.model.scale**2 / 2

        grid = np.geomspace(1e-9, 1e6, 1501)
        return float(grid[np.argmin([excess(value) for value in grid])])
