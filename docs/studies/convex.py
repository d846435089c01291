"""The gain from sparse gradients: errors of means, excess risks and models of clicks, with the rates of the theory.

They are compared with plain noise in every entry and with DP-SGD, at the same ε, δ and neighbours: one record replaced.

Means: a record has one of d/s values in each of s features: half of the time the first, which means missing, else the
value at place p with chance ∝ 1/p. Means of many records are drawn without the records: the counts are multinomial.

Risks: a record shows one of twenty values; value j has chance 2^-j and a click with odds e^2 or e^-2, alternating. Some
value is always so rare that the regulariser hides it, so the bias falls like λ, the worst case of the theory.

Clicks: a million hashed features. Every method has the setting that is best on the test days. DP-SGD had batches of
4,096 and 16,384; larger ones may improve it.

Found, in docs/measured/convex.json and convex_descent.json: the projection's error falls with exponent -0.55 from 1,000
to 32,000 records and -0.99 beyond ten million. Recovery has 0.97 to 0.87 of its error where no entry is large, but
there the answer 0 is nearer than both; where some entries are large, projection is 1.4 to 1.6 times better. Excess
risks at d = 100,000 fall with exponents -0.51 and, with δ = 0, -0.33; theory has -1/2 and -1/3. Descent's risk falls
with -0.63 (theory: -1/2; w = 0 has 0.328), its gradient's norm for a loss that is not convex with -0.36 (theory: -1/4).
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from scipy.special import expit

import study
from dprec.accounting.budget import PrivacyBudget, calibrate
from dprec.accounting.ledger import Event
from dprec.convex import BiasReducedSGD, OutputPerturbation
from dprec.convex.estimator import Logistic, Sigmoid, gradient, minimum, risk
from dprec.convex.mean import gaussian_multiplier
from dprec.convex.measurements import bounded_rows, mean_of, measurements_wanted, recovers
from dprec.convex.mechanisms import (
    Gaussian,
    Projection,
    Recovery,
    VectorNoise,
    draws,
)
from dprec.convex.sgd import Descent
from dprec.data.datasets.click_presets import VOCABULARIES
from dprec.data.datasets.invented import FEATURES, NUMBERS, criteo_clicks
from dprec.metrics import ClickMetrics
from study import Row

DELTA, MISSING, VALUES, ODDS = 1e-6, 0.5, 20, 2.0
SPARSITY = NUMBERS + FEATURES
RISK, NORM = "excess risk of descent", "gradient's norm of descent"
POPULATION, RECORDS = "on the population", "on the records"
COLUMNS = {
    "study": "study",
    "method": "method",
    "n": "records",
    "d": "d",
    "s": "s",
    "epsilon": "ε",
    "value": "value",
    "auc": "AUC",
    "note": "note",
}
SLOPES = (
    ("error by records", "projection", 1e3, 3.2e4, "-1/2 in the sparse regime"),
    ("error by records", "projection", 1e7, 1e8, "-1 beyond it"),
    ("excess risk", "output perturbation", 1e3, 1e6, "-1/2"),
    ("excess risk", "output perturbation, pure", 1e3, 1e6, "-1/3"),
    (RISK, POPULATION, 1e3, 1e5, "-1/2"),
    (RISK, RECORDS, 1e3, 1e5, "-1/2"),
    (NORM, RECORDS, 1e3, 1e5, "-1/4"),
)


def row(
    at: tuple[str, int, int, int], method: str, value: float, epsilon: float | None = 1.0, note: str = "", **more: Any
) -> Row:
    study, n, d, s = at
    found = {"study": study, "method": method, "n": int(n), "d": d, "s": s, "epsilon": epsilon, "value": float(value)}
    return found | {"auc": None, "note": note} | more


def means(quick: bool) -> list[Row]:
    """Return errors of private means by the number of records and of entries."""
    rng, rows = np.random.default_rng(0), []
    d, s = (2_000, 4) if quick else (200_000, 8)
    z = gaussian_multiplier(1.0, DELTA)
    for n in [10**k for k in range(2, 4)] if quick else [round(10 ** (k / 2)) for k in range(4, 17)]:
        mean, at = drawn_mean(n, d, s, rng), ("error by records", n, d, s)
        rows.append(row(at, "zero", np.linalg.norm(mean)))
        rows.append(row(at, "plain Gaussian", error(Gaussian(1.0, s, z), mean, n)))
        rows.append(row(at, "projection", error(Projection(1.0, s, z), mean, n)))
    for name, n, missing, most in (("", 1_000, 0.0, 256), (", large entries", 3_000, MISSING, 64)):
        for s in (2, 8) if quick else [s for s in (4, 16, 64, 256) if s <= most]:
            n, d = (300, 2**10) if quick else (n, 2**18)
            mean, at = drawn_mean(n, d, s, rng, missing), (f"error by sparsity{name}", n, d, s)
            rows.append(row(at, "zero", np.linalg.norm(mean)))
            rows.append(row(at, "projection", error(Projection(1.0, s, z), mean, n)))
            if recovers(measurements_wanted(n, d, s, 1.0, DELTA), d):
                rows.append(row(at, "ℓ1-recovery", recovered(n, d, s, missing, rng)))
    return rows


def error(mechanism: Gaussian, mean: np.ndarray, n: int) -> float:
    """Return the mean ‖ẑ - z̄‖₂ over three draws of the noise."""
    found = [np.linalg.norm(mechanism.of_mean(mean, n, VectorNoise(seed).at(0)) - mean) for seed in range(3)]
    return float(np.mean(found))


def recovered(n: int, d: int, s: int, missing: float, rng: np.random.Generator) -> float:
    """Return the error of ℓ1-recovery, which needs the records."""
    mechanism = Recovery(1.0, s, gaussian_multiplier(1.0, DELTA), 1.0, DELTA)
    rows = drawn_rows(n, d, s, rng, missing)
    mean = mean_of(rows)
    found = [np.linalg.norm(mechanism(rows, VectorNoise(seed).at(0), rng) - mean) for seed in range(3)]
    return float(np.mean(found))


def drawn_rows(n: int, d: int, s: int, rng: np.random.Generator, missing: float = MISSING) -> sparse.csr_array:
    """Return n records (n, d) of norm 1 with exactly s entries."""
    ends = np.cumsum(chances(d // s, missing))
    values = np.minimum(np.searchsorted(ends, rng.random((n, s))), d // s - 1) + d // s * np.arange(s)
    return sparse.csr_array((np.full(n * s, s**-0.5), values.ravel(), np.arange(0, n * s + 1, s)), shape=(n, d))


def block_records(
    records: int, dimension: int, sparsity: int, rng: np.random.Generator, bias: float = 1.0
) -> sparse.csr_array:
    """Return rows of norm 1 with `sparsity` entries ±1/√s, each within one of the blocks, which have equally many rows.

    The lower bounds of Ghazi, Guzmán, Kamath, Kumar and Manurangsi (2024) come from such block-diagonal data: what is
    hard in s dense coordinates is hard in every block at once. A block has signs of its own, drawn once; an entry has
    its block's sign with probability (1 + bias) / 2. With a bias of 1 all rows of a block are alike, and the mean of
    all has the largest ℓ1-norm that such rows can have, √s.

    >>> rows = block_records(6, 7, 2, np.random.default_rng(0))
    >>> rows.shape, rows.nnz, float(abs(rows.mean(axis=0)).sum().round(6))
    ((6, 7), 12, 1.414214)
    """
    blocks = dimension // sparsity
    signs = rng.choice((-1.0, 1.0), size=(blocks, sparsity))
    block = np.arange(records) % blocks
    kept = np.where(rng.random((records, sparsity)) < (1 + bias) / 2, 1.0, -1.0)
    values = signs[block] * kept / np.sqrt(sparsity)
    places = block[:, None] * sparsity + np.arange(sparsity)
    starts = np.arange(0, records * sparsity + 1, sparsity)
    return sparse.csr_array((values.ravel(), places.ravel(), starts), shape=(records, dimension))


def drawn_mean(n: int, d: int, s: int, rng: np.random.Generator, missing: float = MISSING) -> np.ndarray:
    """Return the mean (d,) of n such records."""
    counts = np.concatenate([rng.multinomial(n, chances(d // s, missing)) for _ in range(s)])
    return np.pad(counts / (n * math.sqrt(s)), (0, d - len(counts)))


def chances(values: int, missing: float) -> np.ndarray:
    weights = 1 / np.arange(1, values + 1)
    weights *= (1 - missing) / weights.sum()
    weights[0] += missing
    return weights


class Records:
    """Records of one value each, one-hot, and what their clicks are drawn from."""

    def __init__(self, n: int, d: int, rng: np.random.Generator) -> None:
        self.chances = 0.5 ** np.arange(1, VALUES + 1)
        self.chances /= self.chances.sum()
        self.places = rng.choice(d, VALUES, replace=False)  # columns of the values; no record has another
        self.odds = ODDS * np.where(np.arange(VALUES) % 2, 1.0, -1.0)
        value = rng.choice(VALUES, size=n, p=self.chances)
        self.clicked = (rng.random(n) < expit(self.odds[value])).astype(float)
        self.features = sparse.csr_array((np.ones(n), self.places[value], np.arange(n + 1)), shape=(n, d))
        self.truth = np.zeros(d)
        self.truth[self.places] = self.odds

    def risk(self, weights: np.ndarray) -> float:
        return risk(self.features, self.clicked, Logistic(), weights)

    def above_population(self, weights: np.ndarray) -> float:
        """Return F(w) - F(w₀) where clicks come from the true odds w₀: exact, and never below 0."""
        chance = expit(self.odds)
        values = [np.logaddexp(0.0, scores) - chance * scores for scores in (weights[self.places], self.odds)]
        return float(self.chances @ (values[0] - values[1]))

    def above_records(self, weights: np.ndarray) -> float:
        """Return F(w) - inf F on the records: at best each value has the share of its clicks."""
        count = np.asarray(self.features.sum(axis=0))[self.places]
        share = (self.features.T @ self.clicked)[self.places] / np.maximum(count, 1)
        inside = np.clip(share, 1e-300, 1.0)  # 0 ln 0 is 0
        entropy = -(share * np.log(inside) + (1 - share) * np.log1p(-np.minimum(share, 1 - 1e-16)))
        return self.risk(weights) - float(count @ entropy) / len(self.clicked)

    def perturbed(self, epsilon: float, delta: float, seed: int) -> OutputPerturbation:
        model = OutputPerturbation(epsilon, delta, sparsity=1, scale=ODDS * VALUES**0.5, seed=seed)
        return model.fit(self.features, self.clicked)


def risks(quick: bool) -> list[Row]:
    """Return F(ŵ) - F(w₀) of output perturbation on the training records, where w₀ are the true odds."""
    rng, rows = np.random.default_rng(0), []
    d, rounds = (200, 1) if quick else (100_000, 3)
    for n in (300, 1_000) if quick else [round(10 ** (k / 2)) for k in range(6, 13)]:
        records = Records(n, d, rng)
        for method, delta in (("output perturbation", DELTA), ("output perturbation, pure", 0.0)):
            models = [records.perturbed(1.0, delta, seed) for seed in range(rounds)]
            value = float(np.mean([records.risk(model.coef_) for model in models])) - records.risk(records.truth)
            rows.append(row(("excess risk", n, d, 1), method, value, note=f"λ = {models[0].regularization_:.3g}"))
    return rows


def descent(quick: bool) -> list[Row]:
    """Return excess risks of bias-reduced descent, then the norm of the gradient where the loss is not convex.

    As in the theory, the number of steps grows like the number of records. The scale is beyond the weights' norm, since
    most noise falls on columns without entries, where it costs nothing.
    """
    rows, d, seeds = [], 200 if quick else 10_000, range(1 if quick else 3)
    for n in (200, 600) if quick else [round(10 ** (k / 2)) for k in range(6, 11)]:
        found: dict[tuple[str, str], list[float]] = {}
        steps = []
        for seed in seeds:
            records = Records(n, d, np.random.default_rng(seed))
            options: Any = {"max_steps": max(1, round(0.3 * n)), "scale": 300.0, "seed": seed}
            model = BiasReducedSGD(8.0, DELTA, 1, **options).fit(records.features, records.clicked)
            found.setdefault((RISK, POPULATION), []).append(records.above_population(model.coef_))
            found.setdefault((RISK, RECORDS), []).append(records.above_records(model.coef_))
            loss, bent = Sigmoid(), BiasReducedSGD(8.0, DELTA, 1, "sigmoid", **options)
            part = records.features, records.clicked, loss
            walk = Descent(bent, *part, 8.0, DELTA, VectorNoise(seed), draws(seed))
            stride = max(1, walk.steps // 200)  # one of the iterates is the answer
            norms = [np.linalg.norm(gradient(*part, w)) for step, w in enumerate(walk.iterates()) if step % stride == 0]
            found.setdefault((NORM, RECORDS), []).append(float(np.mean(norms)))
            steps.append(model.n_steps_)
        for (name, method), values in found.items():
            note = f"{min(values):.3g} to {max(values):.3g}; {min(steps):,} to {max(steps):,} steps"
            rows.append(row((name, n, d, 1), method, float(np.mean(values)), 8.0, note))
    return rows


class Clicks:
    """Training and test records of invented clicks as rows of norm 1, (n, d), and whether they were clicked."""

    def __init__(self, n: int, d: int, test: int) -> None:
        made = criteo_clicks(VOCABULARIES, n * 7 // 6 + 2 * test, 7)
        counts, ids = (made["values"][:, own] for own in (slice(NUMBERS), slice(NUMBERS, None)))
        counts = counts.view(np.float32).astype(np.float64)
        octaves = np.where(counts > 0, 1 + np.log2(np.maximum(counts, 1)), 0)
        places = hashed(np.concatenate([octaves, ids.view(np.uint32)], axis=1), d)
        ends, ones = np.arange(0, places.size + 1, SPARSITY), np.full(places.size, SPARSITY**-0.5)
        rows = sparse.csr_array((ones, places.ravel(), ends), shape=(len(places), d))
        self.rows, self.test_rows = (bounded_rows(part, 1.0, SPARSITY) for part in (rows[:n], rows[-test:]))
        self.clicked, self.test_clicked = (
            made["clicked"][part].astype(float) for part in (slice(n), slice(-test, None))
        )

    def best(self, method: str, epsilon: float | None, tried: dict[str, np.ndarray]) -> Row:
        """Return the row of the weights that judge the test days best: normalised entropy, AUC, and their settings."""
        found = []
        for note, weights in tried.items():
            metrics = ClickMetrics()
            metrics.update(torch.from_numpy(self.test_rows @ weights), torch.from_numpy(self.test_clicked))
            values = metrics.compute()
            found.append((float(values["normalised_entropy"]), float(values["auc"]), note))
        entropy, auc, note = min(found)
        n, d = self.rows.shape
        return row(("clicks", n, d, SPARSITY), method, entropy, epsilon, note, auc=auc)

    def descended(self, steps: int, batch: int, rate: float, epsilon: float) -> np.ndarray:
        """Return the weights of DP-SGD on batches of a fixed size: a gradient has at most the norm of its row, 1."""
        budget, share = PrivacyBudget(epsilon, DELTA), batch / len(self.clicked)
        sigma = calibrate(budget, lambda sigma: Event("subset_gaussian", sigma, share), steps)
        rng, noise, weights = np.random.default_rng(0), VectorNoise(0), np.zeros(self.rows.shape[1])
        for step in range(steps):
            who = rng.choice(len(self.clicked), batch, replace=False)
            part = self.rows[who]
            slopes = np.repeat(expit(part @ weights) - self.clicked[who], np.diff(part.indptr)) * part.data
            weights -= rate / batch * np.bincount(part.indices, weights=slopes, minlength=len(weights))
            weights -= rate * noise.at(step).gaussian(len(weights), 2 * sigma / batch)
        return weights


def hashed(values: np.ndarray, dimension: int) -> np.ndarray:
    """Return a place for each value of each feature, (n, features)."""
    keys = values.astype(np.uint64) + (np.arange(values.shape[1], dtype=np.uint64) << np.uint64(32))
    for factor, shift in ((0x9E3779B97F4A7C15, 29), (0xBF58476D1CE4E5B9, 32)):
        keys *= np.uint64(factor)
        keys ^= keys >> np.uint64(shift)
    return (keys % np.uint64(dimension)).astype(np.int32)


def clicks(quick: bool) -> list[Row]:
    """Return a row for each method, number of records and ε."""
    rows = []
    for n in (600,) if quick else (30_000, 300_000, 1_000_000):
        data = Clicks(n, 2_000 if quick else 1_000_000, 300 if quick else 100_000)
        part = data.rows, data.clicked
        plain = {
            share / n: minimum(*part, Logistic(), share / n, share / n / 10, order=2).weights for share in (1, 3, 10)
        }
        rows.append(data.best("without privacy", None, {f"λ = {key:.1g}": w for key, w in plain.items()}))
        for epsilon in (8.0,) if quick else (1.0, 8.0):
            tried = {}
            for share in (3.0, 10.0, 30.0) if epsilon > 3 else (30.0, 60.0, 120.0):
                model = OutputPerturbation(epsilon, DELTA, SPARSITY, regularization=share / n, seed=0)
                tried[f"λ = {share / n:.1g}"] = model.fit(*part).coef_
            rows.append(data.best("output perturbation", epsilon, tried))
            for steps in (5,) if quick else (100, 1_000):
                settings = [(min(batch, n // 4), rate) for batch in (4_096, 16_384) for rate in (16.0, 32.0, 64.0)]
                tried = {f"batch {b:,}, learning rate {r:g}": data.descended(steps, b, r, epsilon) for b, r in settings}
                rows.append(data.best(f"DP-SGD, {steps:,} steps", epsilon, tried))
        if n <= 30_000:
            models = [
                BiasReducedSGD(8.0, DELTA, SPARSITY, max_steps=3 if quick else 50, scale=s, seed=0) for s in (10, 1e3)
            ]
            tried = {f"scale {model.scale:g}": model.fit(*part).coef_ for model in models}
            rows.append(data.best("bias-reduced SGD", 8.0, tried))
    return rows


def measure(asked: Namespace) -> list[Row]:
    torch.set_num_threads(1)
    return (
        descent(asked.quick)
        if asked.study == "descent"
        else [r for f in (means, risks, clicks) for r in f(asked.quick)]
    )


def show(rows: Sequence[Row]) -> None:
    """Print the rows, and how fast errors and risks fall with the number of records, beside the theory."""
    study.table(rows, COLUMNS)
    for name, method, low, high, theory in SLOPES:
        own = [(each["n"], each["value"]) for each in rows if (each["study"], each["method"]) == (name, method)]
        found = [(n, value) for n, value in own if low <= n <= high and value > 0]
        if len(found) > 1:
            where = f"from n = {low:,.0f} to {high:,.0f}"
            print(f"{name}, {method}: exponent {study.slope(found):.2f} {where}; theory {theory}")


def draw(rows: Sequence[Row], file: Path) -> None:
    """Each study's values against the number of records, or of entries."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for each in rows:
        by = "s" if "sparsity" in each["study"] else "n"
        name = each["method"] if each["epsilon"] in (None, 1.0) else f"{each['method']}, ε = {each['epsilon']:g}"
        panels.setdefault(f"{each['study']} ({by})", {}).setdefault(name, []).append((each[by], each["value"]))
    for title, theory in (("excess risk (n)", -1 / 2), (f"{RISK} (n)", -1 / 2), (f"{NORM} (n)", -1 / 4)):
        if title in panels:
            first, *_ = next(iter(panels[title].values()))
            ends = (first[0], max(n for named in panels[title].values() for n, _ in named))
            panels[title][f"∝ n^{theory:g}"] = [(n, first[1] * (n / first[0]) ** theory) for n in ends]
    study.lines(panels, file, "records n or entries s", "error, excess risk or entropy")


PARSER = study.parser(__doc__)
PARSER.add_argument("--study", choices=("rates", "descent"), default="rates", help="descent: bias-reduced descent")

if __name__ == "__main__":
    study.main(PARSER, measure, show, draw)
