"""Descent along debiased private gradients, for as many steps as the budget allows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from scipy import sparse

from dprec.accounting.ledger import Event, Ledger
from dprec.convex.debiasing import (
    Boosting,
    Draw,
    TruncatedGeometric,
    call_epsilon,
    debiased,
    ledger_of,
    steps_within_filter,
    steps_within_ledger,
)
from dprec.convex.estimator import Estimator, Loss, bounded_targets, find_loss
from dprec.convex.mean import check_budget, gaussian_multiplier, promise, regime
from dprec.convex.measurements import bounded_rows
from dprec.convex.mechanisms import Gaussian, Projection, Recovery, VectorNoise, draws
from dprec.errors import UserError, refuse_other_kinds

Model = TypeVar("Model", bound="BiasReducedSGD")
STEP_SHARE, STEP_DELTA_SHARE, CALLS = 8, 4, 4  # the paper's step has (ε/8, δ/4), each of its calls a quarter of that


@dataclass(eq=False)
class BiasReducedSGD(Estimator):
    """A private linear model, trained by descent along bias-reduced private gradients until the budget is spent.

    Every step draws a level N, a batch of 2^(N+1) records and one more record. It calls a private mean estimator four
    times: for the batch, for each half, and for the single record. Levels are independent of the data, so the number
    of steps is fixed before the first: the most that the ledger allows.

    A convex loss returns the average of all iterates, another loss an iterate drawn uniformly. If the first batch is
    too large for the budget, there is no step, and w = 0: the theory's guarantees hold with constant probability.

    Args:
        epsilon: ε of the budget.
        delta: δ of the budget, above 0.
        sparsity: the most nonzero entries of a row; choose it without looking at the data.
        loss: "logistic" or "sigmoid" (bounded, not convex) with targets 0 and 1, or "squared".
        estimator: "projection" or "recovery" (Gaussian ℓ1-recovery).
        step_epsilon: ε of the four calls of a step together, before sampling. By default `max_steps` steps spend about
            the whole budget; with stopping="filter" it is ε/8. A larger value gives fewer and better steps.
        learning_rate: by default scale / (√steps · a bound on the estimate's root mean square).
        scale: the expected norm of the best weights, for the default of `learning_rate`.
        radius: keep the iterates in a ball of this radius; the squared loss needs one.
        max_steps: stop earlier. About a third of the number of records works; a few accurate steps learn nothing.
        stopping: "ledger" for exact composition, "filter" for the rule of the paper.
        failure: the allowed probability of a bad result. Below about 1/2, several runs share the budget, and the best
            is chosen privately. None: one run.
        norm: the largest norm of a row; longer rows are scaled down.
        target_bound: the largest target of the squared loss.
        seed: makes draws and noise repeatable, and the result not private.

    >>> import numpy as np
    >>> from dprec.convex import BiasReducedSGD
    >>> features, clicked = np.eye(4)[[0, 1, 2, 3] * 50], [1, 0, 0, 1] * 50
    >>> model = BiasReducedSGD(epsilon=4.0, delta=1e-3, step_epsilon=1.0, max_steps=2).fit(features, clicked)
    >>> model.coef_.shape, model.n_steps_ <= 2, "differential privacy per record" in model.guarantee_
    ((4,), True, True)
    """

    epsilon: float = 1.0
    delta: float = 1e-6
    sparsity: int = 1
    loss: str = "logistic"
    estimator: str = "projection"
    step_epsilon: float | None = None
    learning_rate: float | None = None
    scale: float = 1.0
    radius: float | None = None
    max_steps: int = 500
    stopping: str = "ledger"
    failure: float | None = None
    norm: float = 1.0
    target_bound: float = 1.0
    seed: int | None = None

    def fit(self: Model, features: Any, targets: Any) -> Model:
        """Learn from a row for each record and its target; return self."""
        loss = self._checked()
        rows = bounded_rows(features, self.norm, self.sparsity)
        records, self.n_features_in_ = rows.shape
        wanted = bounded_targets(targets, records, loss)
        noise, rng = VectorNoise(self.seed), draws(self.seed)
        if self.failure is None:
            descent = Descent(self, rows, wanted, loss, self.epsilon, self.delta, noise, rng)
            self.coef_, self.n_steps_, self.ledger_ = descent.run(), descent.steps, descent.ledger
            what = (
                f"{self.n_steps_} steps of bias-reduced gradients, on batches of random size drawn without replacement"
            )
        else:
            boosting = Boosting(self.epsilon, self.delta, self.failure)
            parts = boosting.epsilon_each, boosting.delta_each

            def run() -> np.ndarray:
                return Descent(self, rows, wanted, loss, *parts, noise, rng).run()

            bounds = self._largest_score(), self._steepness(loss)
            self.coef_ = boosting.choose(run, rows, wanted, loss, *bounds, noise, rng)
            self.ledger_ = Ledger()
            self.ledger_.record(Event("bounded", 1 / self.epsilon, what="the best of several runs", delta=self.delta))
            what = "the best of a random number of runs of bias-reduced gradients"
        if loss.classes:
            self.classes_ = np.array([0, 1])
        self.guarantee_ = promise(what, self.ledger_, self.delta, records, self.seed)
        return self

    def _checked(self) -> Loss:
        refuse_other_kinds(type(self).__init__, self.get_params())
        check_budget(self.epsilon, self.delta, pure=False)
        loss = find_loss(self.loss, self.target_bound)
        if self.estimator not in ("projection", "recovery"):
            raise UserError(f"estimator is '{self.estimator}': give projection or recovery")
        if self.stopping not in ("ledger", "filter"):
            raise UserError(f"stopping is '{self.stopping}': give ledger or filter")
        if self.max_steps < 1:
            raise UserError(f"max_steps is {self.max_steps}: give at least 1")
        for name in ("step_epsilon", "learning_rate", "radius", "scale"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{name} is {value}: give a finite number above 0")
        if self.stopping == "filter" and (self.step_epsilon or self.epsilon / STEP_SHARE) > 1:
            raise UserError(
                "stopping='filter' holds for a step_epsilon of at most 1: lower it, or use stopping='ledger'"
            )
        if self.radius is None and (self.loss == "squared" or (self.failure is not None and loss.convex)):
            raise UserError("loss='squared', and failure, need bounded losses: give radius, the weights' largest norm")
        return loss

    def _largest_score(self) -> float:
        return math.inf if self.radius is None else self.norm * self.radius

    def _steepness(self, loss: Loss) -> float:
        return self.norm * loss.steepness(self._largest_score())


class Descent:
    """One run within a budget; the number of its steps is fixed before the first."""

    def __init__(
        self, model: BiasReducedSGD, rows: sparse.csr_array, targets: np.ndarray, loss: Loss, epsilon: float,
        delta: float, noise: VectorNoise, rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self.model, self.rows, self.targets, self.loss, self.noise, self.rng = model, rows, targets, loss, noise, rng
        records = rows.shape[0]
        call_delta = delta / STEP_DELTA_SHARE / CALLS
        if model.step_epsilon is None and model.stopping == "ledger":
            share = CALLS * call_epsilon(model.max_steps, records, epsilon, delta, call_delta)
        else:
            share = model.step_epsilon or epsilon / STEP_SHARE
        call = share / CALLS, call_delta
        multiplier = gaussian_multiplier(*call)
        self.law = TruncatedGeometric.of(records)
        self.levels = self.law.draw(rng, model.max_steps).tolist()
        if model.stopping == "ledger":
            self.steps = steps_within_ledger(self.levels, records, multiplier, epsilon, delta)
        else:
            self.steps = steps_within_filter(self.levels, records, epsilon, delta, share)
        if self.steps == 0 and steps_within_ledger([0], records, multiplier, epsilon, delta) == 0:
            raise UserError(f"epsilon={epsilon:g} pays for no step at step_epsilon={share:g}: lower step_epsilon")
        self.ledger = ledger_of(self.levels[: self.steps], records, multiplier)
        steep = model._steepness(loss)
        self.estimator: Gaussian = (
            Projection(steep, model.sparsity, multiplier)
            if model.estimator == "projection"
            else Recovery(steep, model.sparsity, multiplier, *call)
        )
        self.rate = model.learning_rate or model.scale / (self._root_mean_square(steep) * math.sqrt(max(self.steps, 1)))

    def run(self) -> np.ndarray:
        """Return the average of the iterates including w = 0, or one of them."""
        total, taken = np.zeros(self.rows.shape[1]), self.rng.integers(self.steps + 1)
        for step, weights in enumerate(self.iterates()):
            if not self.loss.convex and step == taken:
                return weights
            total += weights
        return total / (self.steps + 1)

    def iterates(self) -> Iterator[np.ndarray]:
        """Yield w = 0, and the weights after each step."""
        weights = np.zeros(self.rows.shape[1])
        yield weights
        for level in self.levels[: self.steps]:
            draw = Draw.of(level, self.rows.shape[0], self.rng)
            weights = weights - self.rate * debiased(draw, self.law, partial(self._mean, weights))
            if self.model.radius is not None:
                weights *= min(1.0, self.model.radius / max(float(np.linalg.norm(weights)), 1e-300))
            yield weights

    def _mean(self, weights: np.ndarray, who: np.ndarray) -> np.ndarray:
        """Return the private mean of these records' gradients."""
        part = self.rows[who]
        part.data = part.data * np.repeat(self.loss.slope(part @ weights, self.targets[who]), np.diff(part.indptr))
        return self.estimator(part, self.noise.fresh(), self.rng)

    def _root_mean_square(self, steep: float) -> float:
        """Return a bound on √E‖G‖², from the expected errors of the calls at every level."""

        def squared(size: int) -> float:
            found = regime(size, self.rows.shape[1], self.model.sparsity, steep, self.estimator.multiplier)
            return min(found.sparse, found.dense, 2 * steep * math.sqrt(self.model.sparsity)) ** 2

        levels = range(self.law.most + 1)
        parts = ((squared(2 ** (k + 1)) + squared(2**k)) / self.law.chance(k) for k in levels)
        return math.sqrt(2 * (squared(1) + steep**2) + 4 * math.fsum(parts))
