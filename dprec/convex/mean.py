"""The private mean of sparse vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dprec.accounting.budget import PrivacyBudget, calibrate
from dprec.accounting.ledger import Event, Ledger, round_up
from dprec.convex.measurements import bounded_rows
from dprec.convex.mechanisms import (
    Gaussian,
    Laplace,
    LaplaceProjection,
    Mechanism,
    Projection,
    Recovery,
    VectorNoise,
    Zero,
    draws,
)
from dprec.errors import UserError, refuse_other_kinds


@dataclass(frozen=True)
class PrivateMean:
    """What `private_mean` returns: the mean, the mechanism that released it, its cost and its guarantee.

    Attributes:
        value: (d,) the mean with noise.
        mechanism: the name of the mechanism.
        why: the reason for this mechanism, in a sentence.
        ledger: the events that were paid for.
        guarantee: the sentence that states what holds.

    >>> import numpy as np
    >>> from dprec.convex import private_mean
    >>> mean = private_mean(np.eye(4), sparsity=1, epsilon=1.0, delta=1e-6)
    >>> mean.value.shape, mean.ledger.epsilon(1e-6) <= 1.0
    ((4,), True)
    """

    value: np.ndarray  # (d,)
    mechanism: str
    why: str
    ledger: Ledger
    guarantee: str


def private_mean(
    vectors: Any,
    *,
    sparsity: int,
    epsilon: float,
    delta: float = 0.0,
    norm: float = 1.0,
    mechanism: str = "auto",
    seed: int | None = None,
) -> PrivateMean:
    """Return the mean of sparse vectors with (ε, δ)-differential privacy for replacing one of them.

    If each vector has at most `sparsity` entries and there are few vectors for the dimension d, the error hardly
    depends on d. The error of noise in every entry grows like √d.

    Args:
        vectors: a row for each record, as a scipy.sparse matrix. Rows longer than `norm` in ℓ2, or than
            norm √sparsity in ℓ1, are scaled down.
        sparsity: the most nonzero entries of a row; choose it without looking at the data.
        epsilon: ε of the budget.
        delta: δ of the budget; 0 means Laplace noise and pure privacy.
        norm: the largest norm of a row.
        mechanism: "projection", "recovery" (Gaussian ℓ1-recovery), "plain" (only noise), "zero" (always 0),
            or "auto": zero if its expected error is the smallest, otherwise projection.
        seed: makes the noise repeatable, and the result not private.

    >>> from dprec.convex import private_mean
    >>> from scipy import sparse
    >>> clicks = sparse.csr_array(([1.0] * 5000, ([*range(5000)], [7] * 4000 + [3] * 1000)), shape=(5000, 10**5))
    >>> mean = private_mean(clicks, sparsity=1, epsilon=1.0, delta=1e-6)
    >>> mean.mechanism, mean.value[[7, 3]].round(1), mean.guarantee[:43]
    ('projection of Gaussian noise', array([0.8, 0.2]), '(1, 1e-06)-differential privacy per record,')
    """
    rows = bounded_rows(vectors, norm, sparsity)
    records, dimension = rows.shape
    release, why = choose(mechanism, records, dimension, min(sparsity, dimension), norm, epsilon, delta)
    ledger = Ledger()
    if event := release.event("the mean"):
        ledger.record(event)
    value = release(rows, VectorNoise(seed).at(0), draws(seed))
    return PrivateMean(value, release.name, why, ledger, promise(release.name, ledger, delta, records, seed))


# The expected error of each way to release a mean, and the choice between them.


MECHANISMS = ("auto", "projection", "recovery", "plain", "zero")


@dataclass(frozen=True)
class Regime:
    """Bounds on the expected error ‖ẑ - z̄‖₂ of each way, constants included, and the smallest of them."""

    zero: float  # of the answer 0
    sparse: float  # of the projection, from the number of entries in a row: falls like n^(-1/2), independent of √d
    dense: float  # of plain noise, which also bounds the projection: falls like 1/n

    @property
    def name(self) -> str:
        """ "zero", "sparse" or "dense": the smallest bound."""
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
    """Return the mechanism, and the reason for it in a few words.

    Of the private mechanisms it always chooses the projection, whose error is at most that of plain noise. ℓ1-recovery,
    whose bound has ln(d / s) in place of ln d, needs 1.5 times the noise. In measurements it was better only for means
    so small that 0 was better still.
    """
    check_budget(epsilon, delta)
    if mechanism not in MECHANISMS:
        raise UserError(f"mechanism is '{mechanism}': give one of {', '.join(MECHANISMS)}")
    if mechanism == "recovery" and delta == 0:
        raise UserError(
            "mechanism='recovery' adds Gaussian noise, which needs delta above 0: raise it, or change mechanism"
        )
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


# The sentence that states a result's guarantee, and the checks of a budget.


REPEATABLE = "not private: the noise comes from a fixed seed, and anyone who knows the seed can remove it"


def check_budget(epsilon: float, delta: float, pure: bool = True) -> None:
    """Refuse an invalid ε or δ; δ = 0 is pure privacy, if a mechanism offers it."""
    refuse_other_kinds(check_budget, {"epsilon": epsilon, "delta": delta})
    if not 0 < epsilon < math.inf:
        raise UserError(f"epsilon is {epsilon}: give a finite number above 0, usually 0.1 to 10")
    if not (0 < delta < 1 or (pure and delta == 0)):
        least = "0 for pure privacy, or a number" if pure else "a number above 0 and"
        raise UserError(f"delta is {delta}: give {least} below 1; less than 1 / records is usual")


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the smallest noise, in units of the sensitivity, that makes one Gaussian release (ε, δ)-private.

    >>> round(gaussian_multiplier(1.0, 1e-6), 3)  # the classical formula asks for 5.299
    4.225
    """
    return calibrate(PrivacyBudget(epsilon, delta), lambda sigma: Event("gaussian", sigma), steps=1)


def promise(what: str, ledger: Ledger, delta: float, records: int, seed: int | None) -> str:
    """Return the sentence: guarantee, neighbours, mechanism, and what it does not cover."""
    if seed is not None:
        return REPEATABLE
    if not ledger.events:
        return "(0, 0)-differential privacy: the result does not depend on the data"
    return (
        f"({round_up(ledger.epsilon(delta))}, {round_up(delta)})-differential privacy per record, where neighbouring "
        f"data sets differ by replacing one record, for what is returned: {what}; assumed public: the number of "
        f"records ({records:,}), the number of columns, and every argument but the data; not covered: other results "
        "from the same records, which spend their own ε and δ, people with several records, metrics, arguments that "
        "were chosen by such metrics, and errors that stop a run"
    )
