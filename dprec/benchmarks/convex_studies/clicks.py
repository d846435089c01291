"""Models of invented clicks on a million hashed features: output perturbation, bias-reduced descent and DP-SGD.

All have the same ε and δ for the same neighbours, one record replaced. Every method has the setting that is best on the
test days. This favours the method with the most settings, DP-SGD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from scipy.special import expit

from dprec.accounting.budget import PrivacyBudget, calibrate
from dprec.accounting.ledger import Event
from dprec.benchmarks.common.report import Row
from dprec.benchmarks.convex_studies.measured import measured
from dprec.convex import BiasReducedSGD, OutputPerturbation
from dprec.convex.losses import Logistic
from dprec.convex.minimum import minimum
from dprec.convex.release.noise import VectorNoise
from dprec.convex.release.rows import bounded_rows
from dprec.data.datasets.click_presets import VOCABULARIES
from dprec.data.datasets.invented import FEATURES, NUMBERS, synthetic_clicks
from dprec.metrics.clicks import ClickMetrics

SPARSITY = NUMBERS + FEATURES
DAYS, DELTA = 7, 1e-6
SCRAMBLE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
STUDY = "clicks"
BATCHES, RATES = (4_096, 16_384), (16.0, 32.0, 64.0)  # of DP-SGD


@dataclass(frozen=True)
class Data:
    """Training and test records as rows of norm 1, (n, d), and whether they were clicked."""

    rows: sparse.csr_array
    clicked: np.ndarray
    test_rows: sparse.csr_array
    test_clicked: np.ndarray

    def judge(self, weights: np.ndarray) -> tuple[float, float]:
        """Return normalised entropy and AUC on the test days; the base rate alone gives 1 and 0.5."""
        metrics = ClickMetrics()
        metrics.update(torch.from_numpy(self.test_rows @ weights), torch.from_numpy(self.test_clicked))
        found = metrics.compute()
        return float(found["normalised_entropy"]), float(found["auc"])


def run(quick: bool, say: Callable[[str], None]) -> list[Row]:
    """Return a row for each method, number of records and ε."""
    rows: list[Row] = []
    dimension = 2_000 if quick else 1_000_000
    for n in (600,) if quick else (30_000, 300_000, 1_000_000):
        say(f"drawing {n:,} click records")
        data = invented(n, dimension, test=300 if quick else 100_000)
        rows.append(without_privacy(data))
        for epsilon in (8.0,) if quick else (1.0, 8.0):
            say(f"output perturbation, {n:,} records, ε = {epsilon:g}")
            rows.append(output_perturbation(data, epsilon))
            for steps in (5,) if quick else (100, 1_000):
                say(f"{steps:,} steps of DP-SGD, {n:,} records, ε = {epsilon:g}")
                rows.append(dp_sgd(data, epsilon, steps, [min(batch, n // 4) for batch in BATCHES]))
        if n <= 30_000:
            say(f"bias-reduced descent, {n:,} records")
            rows.append(bias_reduced(data, 8.0, steps=3 if quick else 50))
    return rows


def invented(n: int, dimension: int, test: int) -> Data:
    """Return n records of the first days and `test` of the last: each feature hashed, counts in octaves."""
    block = synthetic_clicks(n * DAYS // (DAYS - 1) + 2 * test, VOCABULARIES, DAYS)
    counts = np.maximum(block.values[:, :NUMBERS], 0)
    octaves = np.where(counts > 0, 1 + np.log2(np.maximum(counts, 1)), 0)
    places = hashed(np.concatenate([octaves, block.values[:, NUMBERS:]], axis=1), dimension)
    ends = np.arange(0, places.size + 1, SPARSITY)
    ones = np.full(places.size, SPARSITY**-0.5)
    rows = sparse.csr_array((ones, places.ravel(), ends), shape=(len(places), dimension))
    clicked = block.clicked.astype(np.float64)
    parts = (bounded_rows(part, 1.0, SPARSITY) for part in (rows[:n], rows[-test:]))  # features may collide
    return Data(next(parts), clicked[:n], next(parts), clicked[-test:])


def hashed(values: np.ndarray, dimension: int) -> np.ndarray:
    """Return a place for each value of each feature, (n, features)."""
    keys = values.astype(np.uint64) + (np.arange(values.shape[1], dtype=np.uint64) << np.uint64(32))
    for factor, shift in zip(SCRAMBLE, (29, 32), strict=True):
        keys *= factor
        keys ^= keys >> np.uint64(shift)
    return (keys % np.uint64(dimension)).astype(np.int32)


def without_privacy(data: Data) -> Row:
    found = []
    for share in (1.0, 3.0, 10.0):
        value = share / len(data.clicked)
        weights = minimum(data.rows, data.clicked, Logistic(), value, value / 10, order=2).weights
        found.append((*data.judge(weights), f"λ = {value:.1g}"))
    return _best(data, "without privacy", None, found)


def output_perturbation(data: Data, epsilon: float) -> Row:
    found = []
    for share in (3.0, 10.0, 30.0) if epsilon > 3 else (30.0, 60.0, 120.0):
        value = share / len(data.clicked)
        model = OutputPerturbation(epsilon, DELTA, SPARSITY, regularization=value, seed=0)
        found.append((*data.judge(model.fit(data.rows, data.clicked).coef_), f"λ = {value:.1g}"))
    return _best(data, "output perturbation", epsilon, found)


def bias_reduced(data: Data, epsilon: float, steps: int) -> Row:
    found = []
    for scale in (10.0, 1_000.0):
        model = BiasReducedSGD(epsilon, DELTA, SPARSITY, max_steps=steps, scale=scale, seed=0)
        found.append(
            (*data.judge(model.fit(data.rows, data.clicked).coef_), f"scale {scale:g}, {model.n_steps_} steps")
        )
    return _best(data, "bias-reduced SGD", epsilon, found)


def dp_sgd(data: Data, epsilon: float, steps: int, batches: Sequence[int]) -> Row:
    """Return the result of this many steps on batches of a fixed size: noise in every entry, no projection."""
    found = []
    for batch in sorted(set(batches)):
        sigma = multiplier(epsilon, batch / len(data.clicked), steps)
        for rate in RATES:
            weights = descended(data, steps, batch, rate, sigma)
            found.append((*data.judge(weights), f"batch {batch:,}, learning rate {rate:g}"))
    return _best(data, f"DP-SGD, {steps:,} steps", epsilon, found)


def multiplier(epsilon: float, rate: float, steps: int) -> float:
    return calibrate(PrivacyBudget(epsilon, DELTA), lambda sigma: Event("subset_gaussian", sigma, rate), steps)


def descended(data: Data, steps: int, batch: int, rate: float, sigma: float) -> np.ndarray:
    """Return the weights after steps on noisy sums of gradients; each has at most the norm of its row, at most 1."""
    rng, noise, weights = np.random.default_rng(0), VectorNoise(0), np.zeros(data.rows.shape[1])
    for step in range(steps):
        who = rng.choice(len(data.clicked), batch, replace=False)
        part = data.rows[who]
        slopes = np.repeat(expit(part @ weights) - data.clicked[who], np.diff(part.indptr)) * part.data
        weights -= rate / batch * np.bincount(part.indices, weights=slopes, minlength=len(weights))
        weights -= rate * noise.at(step).gaussian(len(weights), 2 * sigma / batch)
    return weights


def _best(data: Data, method: str, epsilon: float | None, found: list[tuple[float, float, str]]) -> Row:
    entropy, auc, note = min(found)
    n, d = data.rows.shape
    delta = None if epsilon is None else DELTA
    return measured(STUDY, method, n, d, SPARSITY, epsilon, delta, entropy, auc=auc, note=note)
