"""Noise vectors and random draws, from the operating system's entropy, or repeatable from a seed."""

from __future__ import annotations

import math
import secrets

import numpy as np
import torch

from dprec.errors import UserError
from dprec.noise.gaussian import ROUNDING, GaussianNoise

_DRAWS = 1 << 61  # the key of draws other than noise; no release has it
_GRID = 2.0**-20  # of the noise's scale: too coarse to show a float's lowest bits, too fine to matter for the error


class VectorNoise(GaussianNoise):
    """Vectors of independent noise, slightly wider than asked for: sums of neighbouring data sets round differently.

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
