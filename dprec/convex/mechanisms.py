"""Ways to release the mean of sparse vectors privately, each with its event for the ledger."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse

from dprec.accounting.ledger import Event
from dprec.convex.measurements import (
    LONGEST,
    Design,
    least_l1,
    mean_of,
    measured_mean,
    measurements_wanted,
    project_l1,
    recovers,
)
from dprec.errors import UserError
from dprec.noise.gaussian import ROUNDING, GaussianNoise


@dataclass(frozen=True)
class Gaussian:
    """The mean with Gaussian noise in every entry: unbiased, with an error that grows like √d.

    `multiplier` is the noise in units of 2 norm / n, the sensitivity in ℓ2 of the mean to replacing one of n rows.
    """

    norm: float
    sparsity: int
    multiplier: float

    name = "plain Gaussian"

    def event(self, what: str) -> Event:
        return Event("gaussian", self.multiplier, what=what)

    def __call__(self, rows: sparse.csr_array, noise: VectorNoise, rng: np.random.Generator) -> np.ndarray:
        return self.of_mean(mean_of(rows), rows.shape[0], noise)

    def of_mean(self, mean: np.ndarray, records: int, noise: VectorNoise) -> np.ndarray:
        """Return the private version of this mean of `records` rows."""
        return on_grid(mean + self.drawn(len(mean), records, noise), self.scale(records))

    def drawn(self, size: int, records: int, noise: VectorNoise) -> np.ndarray:
        return noise.gaussian(size, self.scale(records))

    def scale(self, records: int) -> float:
        return self.multiplier * 2 * self.norm / records

    def projected(self, noisy: np.ndarray) -> np.ndarray:
        return project_l1(noisy, self.norm * math.sqrt(self.sparsity))


class Projection(Gaussian):
    """The noisy mean, projected onto the ℓ1-ball that holds every mean of such rows.

    For any noise ξ, ‖ẑ - z̄‖² ≤ 2 norm √s ‖ξ‖∞ and ‖ẑ - z̄‖ ≤ ‖ξ‖.
    """

    name = "projection of Gaussian noise"

    def of_mean(self, mean: np.ndarray, records: int, noise: VectorNoise) -> np.ndarray:
        return self.projected(super().of_mean(mean, records, noise))


class Laplace(Gaussian):
    """The mean with Laplace noise, `multiplier` in units of 2 norm √s / n, its sensitivity in ℓ1: pure privacy."""

    name = "plain Laplace"

    def event(self, what: str) -> Event:
        return Event("bounded", self.multiplier, what=what)

    def drawn(self, size: int, records: int, noise: VectorNoise) -> np.ndarray:
        return noise.laplace(size, self.scale(records))

    def scale(self, records: int) -> float:
        return super().scale(records) * math.sqrt(self.sparsity)


class LaplaceProjection(Laplace):
    """The mean with Laplace noise, projected onto the ℓ1-ball."""

    name = "projection of Laplace noise"

    def of_mean(self, mean: np.ndarray, records: int, noise: VectorNoise) -> np.ndarray:
        return self.projected(super().of_mean(mean, records, noise))


@dataclass(frozen=True)
class Recovery(Gaussian):
    """The vector of smallest ℓ1-norm that explains a few noisy measurements of the mean.

    There are two guards. If the measurements are too many for the dimension (d < m ln² m), it is the plain Gaussian.
    If the result is longer than 2 norm, the recovery has failed and the result is 0. The sensitivity assumes that
    measured rows have norm at most 1.5; the code scales them down to it.
    """

    epsilon: float = 1.0  # ε and δ of this release alone; they determine the number of measurements
    delta: float = 1e-6
    design: Design | None = None  # None: draw a new one, which is needed for a small error

    name = "ℓ1-recovery"

    def __call__(self, rows: sparse.csr_array, noise: VectorNoise, rng: np.random.Generator) -> np.ndarray:
        records, dimension = rows.shape
        wanted = measurements_wanted(records, dimension, self.sparsity, self.epsilon, self.delta)
        if self.design is None and not recovers(wanted, dimension):
            return super().__call__(rows, noise, rng)
        design = self.design or Design(wanted, dimension, rng)
        measured = measured_mean(rows, design, LONGEST * self.norm)
        scale = LONGEST * self.scale(records)
        noisy = on_grid(measured + noise.gaussian(design.measurements, scale), scale)
        found = least_l1(design, noisy)[:dimension]
        return found if np.linalg.norm(found) <= 2 * self.norm else np.zeros(dimension)


@dataclass(frozen=True)
class Zero:
    """Always 0, which costs nothing and is at most `norm` away from the mean."""

    norm: float

    name = "zero"

    def event(self, what: str) -> None:
        return None

    def __call__(self, rows: sparse.csr_array, noise: VectorNoise, rng: np.random.Generator) -> np.ndarray:
        return np.zeros(rows.shape[1])


Mechanism = Gaussian | Zero


# Noise vectors and random draws, from the operating system's entropy, or repeatable from a seed.


_DRAWS = 1 << 61  # the key of draws other than noise; releases do not use it
_GRID = 2.0**-20  # of the noise's scale: coarse enough to hide a float's lowest bits, too fine to affect the error


class VectorNoise(GaussianNoise):
    """Vectors of independent noise, slightly wider than requested: neighbouring data sets' sums round differently.

    >>> noise = VectorNoise(seed=3)
    >>> bool(2.8 < noise.at(0).gaussian(4000, 3.0).std() < 3.2), bool(4 < noise.at(1).laplace(4000, 3.0).std() < 4.5)
    (True, True)
    """

    _streams = 0

    def at(self, step: int) -> VectorNoise:
        super().at(step)
        return self

    def fresh(self) -> VectorNoise:
        """Return self with a stream that no earlier call used."""
        self._streams += 1
        return self.at(self._streams)

    def gaussian(self, size: int, std: float) -> np.ndarray:
        """Return N(0, std²) in every entry."""
        _check_precision(std)
        drawn = np.zeros(size)
        self.add_(torch.from_numpy(drawn), std * (1 + ROUNDING))
        return drawn

    def laplace(self, size: int, scale: float) -> np.ndarray:
        """Return Laplace noise with density ∝ exp(-|x| / scale) in every entry."""
        _check_precision(scale)
        drawn = self.exponentials(size).sub_(self.exponentials(size)).mul_(scale * (1 + ROUNDING))
        return drawn.numpy()


def on_grid(noisy: np.ndarray, scale: float) -> np.ndarray:
    """Return numbers with noise of this scale, rounded to a power of two.

    Without rounding, the lowest bits of a sum reveal its terms: 0 + noise is always a float times the scale, another
    number + noise is not, and more noise does not hide this.

    >>> on_grid(np.array([0.3]), scale=2.0**19)
    array([0.5])
    """
    if scale <= 0:
        return noisy
    unit = 2.0 ** max(math.floor(math.log2(scale * _GRID)), -1000)
    return np.round(noisy / unit) * unit


def _check_precision(scale: float) -> None:
    """Refuse half precision, which rounds the scale of the noise to 0 for many records."""
    if np.result_type(scale).kind == "f" and np.finfo(np.result_type(scale)).bits < 32:
        raise UserError("an argument is a number in half precision, which is too coarse for noise: give Python numbers")


def draws(seed: int | None) -> np.random.Generator:
    """Return a source of batches and choices: unpredictable without a seed, as the accounting assumes."""
    entropy = secrets.randbits(256) if seed is None else seed
    key = np.random.SeedSequence(entropy, spawn_key=(_DRAWS,)).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
