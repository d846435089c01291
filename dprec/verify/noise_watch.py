"""Tests whether released sums have noise, and as much as was promised."""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

ENTRIES = 4096  # of a parameter that are compared
LEVEL = 32.0  # a false alarm has a probability of e^-32 in each test


class NoiseWatch:
    """Compares sums before and after their noise, at entries drawn at random.

    By Chernoff's bound, the mean square of n standard normals is a or further from 1 on that side with a probability
    of at most e^(-n (a - 1 - log a) / 2).

    >>> watch, total = NoiseWatch(), torch.zeros(64, 64)
    >>> watch.before("weight", total)
    >>> watch.after("weight", (total + 2 * torch.randn(64, 64)) / 10, batch=10, std=2.0)
    >>> watch.problem()
    >>> watch.before("weight", total)
    >>> watch.after("weight", total / 10, batch=10, std=2.0)
    >>> watch.problem()
    "'weight' would be released with noise of standard deviation 0, and 2 is promised"
    """

    def __init__(self, padding: Mapping[str, Collection[int]] | None = None) -> None:
        self._padding = padding or {}  # rows that get no noise
        self._rng = np.random.default_rng(secrets.randbits(128))
        self._held: dict[str, tuple[Tensor, Tensor]] = {}
        self._squares: dict[
            str, tuple[int, float, float, float]
        ] = {}  # number of entries, mean square, least measurable, promised deviation

    def before(self, name: str, total: Tensor, whole: bool = True) -> None:
        """Keep some numbers of a parameter's sum. If not `whole`, it is released rows only, without padding."""
        places = self._places(total.numel(), total.device)
        width = max(1, math.prod(total.shape[1:]))
        for row in self._padding.get(name, ()) if whole else ():
            places = places[places // width != row]
        self._held[name] = places, total.reshape(-1)[places].double()

    def after(self, name: str, total: Tensor, batch: float, std: float) -> None:
        places, before = self._held.pop(name)
        released = total.reshape(-1)[places].double() * batch
        self.compare(name, released, before, std, torch.finfo(total.dtype).eps)

    def compare(self, name: str, released: Tensor, before: Tensor, std: float, eps: float) -> None:
        """Compare numbers with their values before the noise; they are rounded to a relative precision of `eps`."""
        # Noise below this cannot be measured, because of the rounding of such large numbers.
        rounding = eps * float(torch.cat([released, before.new_zeros(1)]).abs().amax())
        least = max((rounding / std) ** 2, 1e-12) if std else math.inf
        if least < 1e-4 and len(released):
            mean = float((released - before).square().mean()) / std**2
            self._squares[name] = len(released), mean, least, std

    def problem(self) -> str | None:
        """Return a message if some noise is wrong, and forget the comparisons so far."""
        squares, self._squares = self._squares, {}
        for name, (entries, mean, least, std) in squares.items():
            ratio = max(mean, least)
            if entries and entries * (ratio - 1 - math.log(ratio)) / 2 > LEVEL:
                return (
                    f"'{name}' would be released with noise of standard deviation {std * math.sqrt(mean):.3g}, "
                    f"and {std:.3g} is promised"
                )
        return None

    def some(self, count: int, width: int, device: torch.device) -> Tensor:
        """Draw some of `count` rows of `width` numbers each, ascending."""
        return self._places(count, device, max(1, ENTRIES // max(1, width))).unique()

    def _places(self, count: int, device: torch.device, most: int = ENTRIES) -> Tensor:
        if count <= most:
            return torch.arange(count, device=device)
        return torch.from_numpy(self._rng.integers(0, count, most)).to(device)
