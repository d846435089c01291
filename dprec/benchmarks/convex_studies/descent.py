"""The excess risk of bias-reduced descent, and the norm of the gradient where the loss is not convex.

The records are those of `risks`, in fewer columns, since a step takes four vectors of noise. As in the theory, the
number of steps grows like the number of records; a fixed one that is small, such as 50, learns nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dprec.benchmarks.common.report import Row
from dprec.benchmarks.convex_studies.measured import measured
from dprec.benchmarks.convex_studies.risks import ODDS, VALUES, Records
from dprec.convex import BiasReducedSGD, OutputPerturbation
from dprec.convex.losses import Logistic, Sigmoid
from dprec.convex.minimum import gradient, risk
from dprec.convex.release.noise import VectorNoise, draws
from dprec.convex.sgd import Descent

EPSILON, DELTA, SEEDS = 8.0, 1e-6, 3
STEPS_EACH = 0.3  # more are a little better, and take as many times longer
SCALE = 300.0  # beyond the weights' norm: most noise falls on columns without entries, where it costs nothing
ITERATES = 200  # of a run without a convex loss, at which the gradient is taken
RISK, NORM = "excess risk of descent", "gradient's norm of descent"
POPULATION, RECORDS, BESIDE = "on the population", "on the records", "output perturbation, on the population"


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return risks of each number of records, then norms."""
    sizes = (200, 600) if quick else [round(10 ** (k / 2)) for k in range(6, 11)]
    dimension, seeds = (200, 1) if quick else (10_000, SEEDS)
    rows: list[Row] = []
    for n in sizes:
        say(f"bias-reduced descent on {n:,} records")
        rows += risks(n, dimension, range(seeds))
    for n in sizes:
        say(f"bias-reduced descent on {n:,} records, not convex")
        rows += norms(n, dimension, range(seeds))
    return rows


def risks(n: int, d: int, seeds: Sequence[int]) -> list[Row]:
    """Return F(ŵ) - min F, of the population and of the records, and output perturbation's on the population."""
    found: dict[str, list[float]] = {POPULATION: [], RECORDS: [], BESIDE: []}
    steps = []
    for seed in seeds:
        records = Records.drawn(n, d, np.random.default_rng(seed))
        model = _model(n, seed, "logistic").fit(records.features, records.clicked)
        beside = OutputPerturbation(EPSILON, DELTA, sparsity=1, scale=ODDS * VALUES**0.5, seed=seed)
        beside.fit(records.features, records.clicked)
        found[POPULATION].append(excess_of_population(records, model.coef_))
        found[RECORDS].append(excess_of_records(records, model.coef_))
        found[BESIDE].append(excess_of_population(records, beside.coef_))
        steps.append(model.n_steps_)
    notes = {POPULATION: _note(steps), RECORDS: _note(steps), BESIDE: ""}
    return [_row(RISK, method, n, d, values, notes[method]) for method, values in found.items()]


def norms(n: int, d: int, seeds: Sequence[int]) -> list[Row]:
    """Return the mean of ‖∇F‖ on the records over the iterates, one of which is the answer."""
    found, steps = [], []
    for seed in seeds:
        records = Records.drawn(n, d, np.random.default_rng(seed))
        model, loss = _model(n, seed, "sigmoid"), Sigmoid()
        descent = Descent(
            model, records.features, records.clicked, loss, EPSILON, DELTA, VectorNoise(seed), draws(seed)
        )
        stride = max(1, descent.steps // ITERATES)
        taken = (weights for step, weights in enumerate(descent.iterates()) if step % stride == 0)
        found.append(
            float(np.mean([np.linalg.norm(gradient(records.features, records.clicked, loss, w)) for w in taken]))
        )
        steps.append(descent.steps)
    return [_row(NORM, RECORDS, n, d, found, _note(steps))]


def excess_of_population(records: Records, weights: np.ndarray) -> float:
    """Return F(w) - F(w₀) where clicks come from the true odds w₀: exact, and never below 0."""
    chance = 1 / (1 + np.exp(-records.odds))

    def value(scores: np.ndarray) -> float:
        return float(records.chances @ (np.logaddexp(0.0, scores) - chance * scores))

    return value(weights[records.places]) - value(records.odds)


def excess_of_records(records: Records, weights: np.ndarray) -> float:
    """Return F(w) - inf F on the records: at best each value has the share of its clicks."""
    count = np.asarray(records.features.sum(axis=0))[records.places]
    share = (records.features.T @ records.clicked)[records.places] / np.maximum(count, 1)
    inside = np.clip(share, 1e-300, 1.0)  # 0 ln 0 is 0
    entropy = -(share * np.log(inside) + (1 - share) * np.log1p(-np.minimum(share, 1 - 1e-16)))
    least = float(count @ entropy) / len(records.clicked)
    return risk(records.features, records.clicked, Logistic(), weights) - least


def _model(n: int, seed: int, loss: str) -> BiasReducedSGD:
    steps = max(1, round(STEPS_EACH * n))
    return BiasReducedSGD(EPSILON, DELTA, 1, loss, max_steps=steps, scale=SCALE, seed=seed)


def _row(study: str, method: str, n: int, d: int, values: Sequence[float], note: str) -> Row:
    spread = f"{min(values):.3g} to {max(values):.3g}"
    note = f"{spread}; {note}" if note else spread
    return measured(study, method, n, d, 1, EPSILON, DELTA, float(np.mean(values)), note=note)


def _note(steps: Sequence[int]) -> str:
    return f"{min(steps):,} to {max(steps):,} steps"
