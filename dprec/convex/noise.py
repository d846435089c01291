"""Noise vectors and draws, from the operating system's entropy unless a seed makes them repeatable."""

from __future__ import annotations

import secrets

import numpy as np
import torch

from dprec.privacy.gradient import ROUNDING
from dprec.privacy.noise import GaussianNoise

_DRAWS = 1 << 61  # the key of what is drawn besides noise: never that of a release


class Noise(GaussianNoise):
    """Vectors of independent noise, a hair wider than asked for: sums with and without a record round differently.

    >>> noise = Noise(seed=3)
    >>> bool(2.8 < noise.at(0).gaussian(4000, 3.0).std() < 3.2), bool(4 < noise.at(1).laplace(4000, 3.0).std() < 4.5)
    (True, True)
    """

    def at(self, step: int) -> Noise:
        super().at(step)
        return self

    def gaussian(self, size: int, std: float) -> np.ndarray:
        """Return N(0, std²) in every entry."""
        drawn = np.zeros(size)
        self.add_(torch.from_numpy(drawn), std * (1 + ROUNDING))
        return drawn

    def laplace(self, size: int, scale: float) -> np.ndarray:
        """Return Laplace noise with density ∝ exp(-|x| / scale) in every entry."""
        # The difference of two exponentials: their tails are exact, those of an inverted uniform end at 37 scales.
        drawn = self._philox.standard_exponential(size)
        drawn -= self._philox.standard_exponential(size)
        drawn *= scale * (1 + ROUNDING)
        return drawn


def draws(seed: int | None) -> np.random.Generator:
    """Return a source of batches and choices: unpredictable without a seed, since accounting counts on that."""
    entropy = secrets.randbits(256) if seed is None else seed
    key = np.random.SeedSequence(entropy, spawn_key=(_DRAWS,)).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(key=key))
