"""How much noise reaches a model's weights if the noise of steps is correlated, beside dprec's independent noise.

With b bands, users are divided into b groups at random, step t draws from group t mod b, and a step's noise cancels
part of that of the b - 1 steps before it (Choquette-Choo et al., 2023, "(Amplified) Banded Matrix Factorization"). Both
have the same ε, δ, steps and mean batch. The privacy is that of every b-th step at b times the rate. The matrix is the
banded square root (Kalinin and Lampert, 2024). `error` is the root mean square, over all steps, of the noise that SGD
has added to a weight so far, in parts of the clipping norm.
"""

from __future__ import annotations

import math
from argparse import Namespace
from dataclasses import asdict, dataclass

import numpy as np
from scipy.linalg import solve_triangular, toeplitz

import study
from dprec.accounting.budget import PrivacyBudget, calibrate
from dprec.accounting.ledger import Event
from study import Row

COLUMNS = {
    "name": "setting", "epsilon": "ε", "steps": "steps", "rate": "rate", "bands": "bands", "sigma": "σ",
    "error": "error", "ratio": "beside one band",
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    name: str
    users: int
    steps: int
    rate: float


SETTINGS = (
    Setting("quickstart, one night", 4_000, steps=30, rate=0.25),
    Setting("movielens_dpformer", 6_040, steps=60, rate=0.339),
    Setting("games_dpformer_popular", 29_246, steps=28, rate=0.280),
    Setting("criteo_adafest", 500_000, steps=300, rate=0.033),
    Setting("dlrm_lazydp", 500_000, steps=244, rate=0.0041),
    Setting("dlrm_lazydp, ten passes", 500_000, steps=2440, rate=0.0041),
)
WHOLE = (Setting("everybody in every second step", 1000, steps=8, rate=0.5),)


def reach(steps: int, bands: int) -> float:
    """Return `error` for σ = 1: of the prefix sums of C⁻¹z, where the columns of C have norm 1."""
    roots = np.cumprod([1.0, *((2 * k - 1) / (2 * k) for k in range(1, bands))])  # of (1 - x)^(-1/2)
    column = np.zeros(steps)
    column[: len(roots)] = roots[:steps] / np.linalg.norm(roots)
    left = solve_triangular(toeplitz(column, np.zeros(steps)), np.tril(np.ones((steps, steps))), lower=True)
    return math.sqrt((left**2).sum() / steps)


def measure(asked: Namespace) -> list[Row]:
    settings, budgets = (WHOLE, (8.0,)) if asked.quick else (SETTINGS, (1.0, 8.0))
    return [row for epsilon in budgets for each in settings for row in _rows(each, epsilon)]


def _rows(setting: Setting, epsilon: float) -> list[Row]:
    """Return a row for independent noise, and one for the best number of bands."""
    most = min(setting.steps, int(1 / setting.rate))
    independent, *banded = (_row(setting, epsilon, 2**k) for k in range(most.bit_length()))
    rows = [independent, *sorted(banded, key=lambda row: row["error"])[:1]]
    return [row | {"ratio": row["error"] / independent["error"]} for row in rows]


def _row(setting: Setting, epsilon: float, bands: int) -> Row:
    budget, rate = PrivacyBudget(epsilon, 1 / setting.users), bands * setting.rate
    sigma = calibrate(budget, lambda sigma: Event("poisson_gaussian", sigma, rate), math.ceil(setting.steps / bands))
    error = sigma * reach(setting.steps, bands)
    return asdict(setting) | {"epsilon": epsilon, "bands": bands, "sigma": sigma, "error": error}


PARSER = study.parser(__doc__)

if __name__ == "__main__":
    study.main(PARSER, measure, COLUMNS)
