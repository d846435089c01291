"""Learn without privacy, release with noise: one release, no steps to add up."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np

from dprec.accounting.ledger import Event, Ledger
from dprec.convex.estimator import Estimator
from dprec.convex.losses import ConvexLoss, bounded_targets, find_convex_loss
from dprec.convex.minimum import minimum
from dprec.convex.noise import Noise, on_grid
from dprec.convex.projection import project_linf
from dprec.convex.promise import check_budget, gaussian_multiplier, promise
from dprec.convex.rows import bounded_rows
from dprec.errors import UserError

Model = TypeVar("Model", bound="OutputPerturbation")


class OutputPerturbation(Estimator):
    """The regularised minimum plus noise, drawn back in ℓ∞ to the ball in which every such minimum lies.

    Replacing one record moves w* = argmin F(w) + λ/2 ‖w‖² by at most 2L / λn in ℓ2, where no record's loss is
    steeper than L. The noise is made for that, and for what the solver leaves: w is only accepted with a
    gradient of at most `tolerance` L / n, which it is checked for. The entries of ŵ are then within 2 ‖ξ‖∞ of those
    of w, and what a record with s entries sees of the noise does not grow with the dimension, but for ln d.

    δ = 0 adds Laplace noise for the move in ℓ1, at most 2√s L (1 + H/λ) / λn where H bounds a record's curvature.

    Args:
        epsilon: the budget's ε.
        delta: its δ; 0 for pure privacy.
        sparsity: how many entries of a row are other than 0, at most; decided without looking.
        regularization: λ; by default what balances the noise against a minimum of length `scale`.
        scale: how long the weights are expected to be, for the default of `regularization`.
        loss: "logistic" with targets 0 and 1, or "squared" with targets up to ±`target_bound`.
        norm: the longest row; longer ones are scaled down.
        target_bound: the largest target of the squared loss.
        tolerance: what the solver may leave of the gradient, in units of L / n; the noise grows by as much.
        seed: makes the noise repeatable, and the result not private.

    >>> rng = np.random.default_rng(0)
    >>> features = np.eye(4)[rng.integers(4, size=20_000)]
    >>> clicked = rng.random(20_000) < features @ [0.9, 0.1, 0.5, 0.5]
    >>> model = OutputPerturbation(epsilon=1.0, delta=1e-6, sparsity=1, regularization=0.01).fit(features, clicked)
    >>> model.predict(np.eye(4)[:2]), model.guarantee_[:43]
    (array([1, 0]), '(1, 1e-06)-differential privacy per record,')
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        delta: float = 1e-6,
        sparsity: int = 1,
        regularization: float | None = None,
        scale: float = 1.0,
        loss: str = "logistic",
        norm: float = 1.0,
        target_bound: float = 1.0,
        tolerance: float = 0.01,
        seed: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.sparsity = sparsity
        self.regularization = regularization
        self.scale = scale
        self.loss = loss
        self.norm = norm
        self.target_bound = target_bound
        self.tolerance = tolerance
        self.seed = seed

    def fit(self: Model, features: Any, targets: Any) -> Model:
        """Learn from a row for each record and its target; return self."""
        check_budget(self.epsilon, self.delta)
        for name in ("scale", "tolerance"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}: give a finite number above 0")
        loss = find_convex_loss(self.loss, self.target_bound)
        rows = bounded_rows(features, self.norm, self.sparsity)
        records, self.n_features_in_ = rows.shape
        wanted = bounded_targets(targets, records, loss)
        law = NoiseLaw(self, loss, records, self.n_features_in_)
        self.regularization_ = law.balanced() if self.regularization is None else self.regularization
        if not 0 < self.regularization_ < math.inf:
            raise UserError(
                f"regularization is {self.regularization}: give a number above 0; without it noise is endless"
            )
        self.noise_scale_ = law.scale(self.regularization_)
        left = law.residual(self.regularization_)
        found = minimum(rows, wanted, loss, self.regularization_, left, order=law.order)
        self.ledger_ = Ledger()
        self.ledger_.record(law.event)
        noise = Noise(self.seed).at(0)
        draw = noise.laplace if law.pure else noise.gaussian
        noisy = on_grid(found.weights + draw(self.n_features_in_, self.noise_scale_), self.noise_scale_)
        # No minimum is longer: its value is at most that of w = 0.
        self.coef_ = project_linf(noisy, law.radius(self.regularization_))
        if loss.classes:
            self.classes_ = np.array([0, 1])
        self.guarantee_ = promise(f"a minimum with {law.name} noise", self.ledger_, self.delta, records, self.seed)
        return self


class NoiseLaw:
    """How much noise a regularised minimum needs, as a function of λ."""

    def __init__(self, model: OutputPerturbation, loss: ConvexLoss, records: int, dimension: int) -> None:
        self.model, self.loss, self.records, self.dimension = model, loss, records, dimension
        self.pure = model.delta == 0
        self.name, self.order = ("Laplace", 1) if self.pure else ("Gaussian", 2)
        self.multiplier = 1 / model.epsilon if self.pure else gaussian_multiplier(model.epsilon, model.delta)
        self.event = Event("bounded" if self.pure else "gaussian", self.multiplier, what="a regularised minimum")

    def radius(self, regularization: float) -> float:
        """The longest that a minimum can be: F_λ(w*) ≤ F_λ(0)."""
        return math.sqrt(2 * self.loss.at_zero / regularization)

    def steepness(self, regularization: float) -> float:
        """L: the longest gradient of a record at any minimum."""
        return self.model.norm * self.loss.steepness(self.model.norm * self.radius(regularization))

    def residual(self, regularization: float) -> float:
        """The largest gradient that the solver may leave: in ℓ2, or in ℓ1, and so in ℓ2 too, for pure privacy."""
        return self.model.tolerance * self.steepness(regularization) / self.records

    def move(self, regularization: float) -> float:
        """The sensitivity of what the solver returns: in ℓ2, or in ℓ1 for pure privacy."""
        steep = self.steepness(regularization)
        across = 2 * steep / self.records * (1 + self.model.tolerance)  # λ times the move in ℓ2
        if not self.pure:
            return across / regularization
        bend = self.loss.bend * self.model.norm**2
        return math.sqrt(self.model.sparsity) * across * (1 + bend / regularization) / regularization

    def scale(self, regularization: float) -> float:
        return self.multiplier * self.move(regularization)

    def balanced(self) -> float:
        """λ with the least bound on the excess risk: 2 √s L ‖ξ‖∞ for the noise and λ D² / 2 for the regulariser."""
        largest = 1 + math.log(self.dimension) if self.pure else math.sqrt(2 * math.log(2 * self.dimension))

        def excess(regularization: float) -> float:
            noise = 2 * math.sqrt(self.model.sparsity) * self.steepness(regularization) * self.scale(regularization)
            return noise * largest + regularization * self.model.scale**2 / 2

        grid = np.geomspace(1e-9, 1e6, 1501)
        return float(grid[np.argmin([excess(value) for value in grid])])
