"""Losses of a linear score, and the constants that bound the effect of one record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.special import expit

from dprec.errors import UserError


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
Found = TypeVar("Found", bound=Loss)


def find_loss(name: str, target_bound: float) -> Loss:
    """Return the loss of this name."""
    return _named(name, (*_convex_losses(target_bound), Sigmoid()))


def find_convex_loss(name: str, target_bound: float) -> ConvexLoss:
    """Return the convex loss of this name."""
    return _named(name, _convex_losses(target_bound))


def _convex_losses(target_bound: float) -> tuple[ConvexLoss, ...]:
    if not (math.isfinite(target_bound) and target_bound > 0):
        raise UserError(f"target_bound is {target_bound}: give the largest absolute value of a target, above 0")
    return Logistic(), Squared(target_bound)


def _named(name: str, losses: Sequence[Found]) -> Found:
    for loss in losses:
        if loss.name == name:
            return loss
    raise UserError(f"loss is '{name}': give one of {', '.join(loss.name for loss in losses)}")


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
