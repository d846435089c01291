"""Closed forms of the mean and variance of a row without gradients after many steps of plain SGD.

One step, with learning rate η, decay λ and noise ξ of standard deviation s, changes weight w to

    w ← w - η (λ w + ξ)

This is linear, so that many steps have a linear mean and one Gaussian noise, which can be drawn at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dprec.sparsity.rows.kinds import Rates
from dprec_kernels.tables import to_device

SMALL = 1e-100  # of what decay leaves: below this the sums restart, long before they lose digits
DROWNED = 1e-11  # of the sum of all steps' variances: the least that one step may add, for a relative error of 1e-5


class Decayed:
    """After step b, a row last settled before step a is A_b / A_a w plus noise.

    With A_t = Π_{i<t} (1 - η_i λ_i) and Q_t = Σ_{i<t} (η_i / A_{i+1})², its variance is s² A_b² (Q_b - Q_a).
    """

    def __init__(self) -> None:
        self.steps = 0
        self._known = _grown(torch.tensor([[1.0], [0.0]], dtype=torch.float64))  # A_t and Q_t of all steps
        self._there = self._known  # the same on the tables' device
        self._sent = 0  # how many of its numbers were copied there

    def record(self, rates: Rates) -> None:
        """Record one more step."""
        now, then = self.steps, self.steps + 1
        if then == self._known.shape[1]:
            self._known = _grown(self._known)
        self._left[then] = self._left[now] * (1 - rates.rate * rates.decay)
        self._noise[then] = self._noise[now] + (rates.rate / self._left[then]) ** 2
        self.steps = then

    @property
    def _left(self) -> Tensor:
        return self._known[0]

    @property
    def _noise(self) -> Tensor:
        return self._known[1]

    @property
    def decays(self) -> bool:
        """Whether weights have decayed at all."""
        return float(self._left[self.steps]) != 1

    @property
    def worn(self) -> bool:
        """Whether every row should be settled, and the sums restarted."""
        return float(self._left[self.steps]) < SMALL

    def drowns(self, rates: Rates) -> bool:
        """Whether a step adds so little to the sums that their rounding would hide its noise.

        This happens if rates fall to 0 over a million steps. Q_b - Q_a would be 0, and rows that are not read would
        owe nothing for such a step. That would reveal which rows were read.
        """
        left = float(self._left[self.steps]) * (1 - rates.rate * rates.decay)
        return rates.rate != 0 and rates.rate**2 < DROWNED * float(self._noise[self.steps]) * left**2

    def since(self, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Return (n,) mean factors and noise, in units of s, of rows that were settled before these steps."""
        return self._left[self.steps] / self._on(steps.device)[0].index_select(0, steps), self.owed(steps)

    def owed(self, steps: Tensor) -> Tensor:
        """Return only the noise."""
        noise = self._noise[self.steps] - self._on(steps.device)[1].index_select(0, steps)
        noise.clamp_(min=0).sqrt_()
        return noise.mul_(self._left[self.steps]) if self.decays else noise

    def _on(self, device: torch.device) -> Tensor:
        """Return (2, steps), A and Q, on this device; only steps since the last call are copied."""
        if device.type == "cpu":
            return self._known
        known = self.steps + 1
        if self._there.device != device or self._there.shape != self._known.shape:
            with torch.inference_mode(False):  # an evaluation may fill it first, and training uses it too
                self._there, self._sent = to_device(self._known, device), known
        if self._sent < known:
            self._there[:, self._sent : known].copy_(to_device(self._known[:, self._sent : known], device))
        self._sent = known
        return self._there


def _grown(values: Tensor) -> Tensor:
    longer = torch.empty(2, max(1024, 2 * values.shape[1]), dtype=values.dtype)
    longer[:, : values.shape[1]] = values
    return longer
