"""What the error of each way to release a mean is expected to be, and so which one to take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dprec.convex.mechanisms import Gaussian, Laplace, LaplaceProjection, Mechanism, Projection, Recovery, Zero
from dprec.convex.promise import check_budget, gaussian_multiplier
from dprec.errors import UserError

MECHANISMS = ("auto", "projection", "recovery", "plain", "zero")


@dataclass(frozen=True)
class Regime:
    """Bounds on the expected error ‖ẑ - z̄‖₂ of each way, constants included, and the least of them."""

    zero: float  # of saying nothing
    sparse: float  # of the projection, by how many entries a row has: falls like n^(-1/2), √d does not enter
    dense: float  # of the plain noise, which the projection never passes: falls like 1/n

    @property
    def name(self) -> str:
        """ "zero", "sparse" or "dense": which bound is the least."""
        bounds = {"zero": self.zero, "sparse": self.sparse, "dense": self.dense}
        return min(bounds, key=bounds.__getitem__)

    @property
    def least(self) -> float:
        return min(self.zero, self.sparse, self.dense)


def regime(records: int, dimension: int, sparsity: int, norm: float, multiplier: float, pure: bool = False) -> Regime:
    """Return the bounds for a mean of `records` rows; `multiplier` is the noise in units of the sensitivity.

    >>> [regime(n, 200_000, 8, 1.0, multiplier=4.22).name for n in (100, 10_000, 10_000_000)]
    ['zero', 'sparse', 'dense']
    """
    radius = norm * math.sqrt(sparsity)
    if pure:
        scale = multiplier * 2 * radius / records
        largest = scale * (1 + math.log(dimension))
        whole = scale * math.sqrt(2 * dimension)
    else:
        scale = multiplier * 2 * norm / records
        largest = scale * math.sqrt(2 * math.log(2 * dimension))
        whole = scale * math.sqrt(dimension)
    return Regime(norm, math.sqrt(2 * radius * largest), whole)


def choose(
    mechanism: str, records: int, dimension: int, sparsity: int, norm: float, epsilon: float, delta: float
) -> tuple[Mechanism, str]:
    """Return the mechanism, and in a few words why this one.

    Of the private ones the projection is always the best guess: its error is at most that of the plain noise, and
    ℓ1-recovery, whose bound has ln(d / s) in place of ln d, needs 1.5 times the noise and came out ahead only for
    means so small that 0 was the better answer.
    """
    check_budget(epsilon, delta)
    if mechanism not in MECHANISMS:
        raise UserError(f"mechanism is '{mechanism}': give one of {', '.join(MECHANISMS)}")
    if mechanism == "recovery" and delta == 0:
        raise UserError("mechanism='recovery' adds Gaussian noise, which is never pure: give delta above 0, or another")
    multiplier = 1 / epsilon if delta == 0 else gaussian_multiplier(epsilon, delta)
    found = regime(records, dimension, sparsity, norm, multiplier, pure=delta == 0)
    why = "asked for"
    if mechanism == "auto":
        why = f"{found.name} regime: expected error at most {found.least:.3g} of {norm:.3g}"
        mechanism = "zero" if found.name == "zero" else "projection"
    if mechanism == "zero":
        return Zero(norm), why
    if mechanism == "recovery":
        return Recovery(norm, sparsity, multiplier, epsilon, delta), why
    plain, projected = (Laplace, LaplaceProjection) if delta == 0 else (Gaussian, Projection)
    return (plain if mechanism == "plain" else projected)(norm, sparsity, multiplier), why
