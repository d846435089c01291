"""The private mean of sparse vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dprec.accounting.ledger import Ledger
from dprec.convex.release.measurements import bounded_rows
from dprec.convex.release.mechanisms import VectorNoise, draws
from dprec.convex.release.regimes import choose, promise


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
            or "auto": zero where its expected error is the smallest, otherwise projection.
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
