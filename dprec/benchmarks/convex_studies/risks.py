"""The excess risk of output perturbation, and the number of steps that the budget of bias-reduced descent allows.

A record shows one of twenty values; value j has chance 2^-j and a click with odds e^2 or e^-2, alternating. There is
always a value so rare that the regulariser hides it, so the bias falls like λ, the worst case of the theory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from dprec.benchmarks.common.report import Row
from dprec.benchmarks.convex_studies.measured import measured
from dprec.convex.debiasing import TruncatedGeometric
from dprec.convex.losses import Logistic
from dprec.convex.minimum import risk
from dprec.convex.output_perturbation import OutputPerturbation
from dprec.convex.stopping import steps_within_filter

EPSILON, DELTA = 1.0, 1e-6
VALUES, ODDS = 20, 2.0
METHODS = {"output perturbation": DELTA, "output perturbation, pure": 0.0}


@dataclass(frozen=True)
class Records:
    """Records of one value each, one-hot, and what their clicks are drawn from."""

    features: sparse.csr_array  # (n, d)
    clicked: np.ndarray  # (n,)
    places: np.ndarray  # (VALUES,) columns of the values; no record has another
    chances: np.ndarray  # (VALUES,)
    odds: np.ndarray  # (VALUES,)

    @classmethod
    def drawn(cls, n: int, d: int, rng: np.random.Generator) -> Records:
        chances = 0.5 ** np.arange(1, VALUES + 1)
        chances /= chances.sum()
        places = rng.choice(d, VALUES, replace=False)
        odds = ODDS * np.where(np.arange(VALUES) % 2, 1.0, -1.0)
        value = rng.choice(VALUES, size=n, p=chances)
        clicked = (rng.random(n) < 1 / (1 + np.exp(-odds[value]))).astype(float)
        features = sparse.csr_array((np.ones(n), places[value], np.arange(n + 1)), shape=(n, d))
        return cls(features, clicked, places, chances, odds)

    @property
    def truth(self) -> np.ndarray:
        weights = np.zeros(self.features.shape[1])
        weights[self.places] = self.odds
        return weights


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return the excess risks, then the numbers of steps."""
    rng = np.random.default_rng(0)
    dimension, rounds = (200, 1) if quick else (100_000, 3)
    rows: list[Row] = []
    for n in (300, 1_000) if quick else [round(10 ** (k / 2)) for k in range(6, 13)]:
        say(f"output perturbation on {n:,} records")
        rows += excess(n, dimension, rounds, rng)
    for power in (8,) if quick else range(8, 17, 2):
        say(f"stopping times of {2**power:,} records")
        rows += stopping_times(2**power, 20 if quick else 300, rng)
    return rows


def excess(n: int, d: int, rounds: int, rng: np.random.Generator) -> list[Row]:
    """Return F(ŵ) - F(w₀) on the training records, where w₀ are the true odds."""
    records = Records.drawn(n, d, rng)
    features, clicked = records.features, records.clicked
    reference = risk(features, clicked, Logistic(), records.truth)
    rows = []
    for method, delta in METHODS.items():
        models = [
            OutputPerturbation(EPSILON, delta, sparsity=1, scale=ODDS * VALUES**0.5, seed=seed).fit(features, clicked)
            for seed in range(rounds)
        ]
        value_of = [risk(features, clicked, Logistic(), model.coef_) - reference for model in models]
        note = f"λ = {models[0].regularization_:.3g}"
        rows.append(measured("excess risk", method, n, d, 1, EPSILON, delta, float(np.mean(value_of)), note=note))
    return rows


def stopping_times(n: int, rounds: int, rng: np.random.Generator) -> list[Row]:
    """Return the mean number of steps by the paper's rule with δ = 1/n², and the paper's bounds on it."""
    law, delta = TruncatedGeometric.of(n), n**-2.0
    times = [steps_within_filter(law.draw(rng, 40 * n).tolist(), n, EPSILON, delta) for _ in range(rounds)]
    least, most = n * n / ((n + 1) * math.log(4 / delta)) - 1, 64 * n / (9 * math.log(4 / delta))
    where = ("stopping time", "rule of the paper", n, 1, 1, EPSILON, delta)
    return [measured(*where, float(np.mean(times)), theory=most, note=f"at least {least:.1f}")]
