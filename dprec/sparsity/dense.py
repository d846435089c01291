"""Plain DP-SGD on tables: noise for every row in every step, in one sweep over the table."""

from __future__ import annotations

from torch import Tensor

from dprec.sparsity.rows.kinds import NoiseSchedule, Rates
from dprec.sparsity.rows.tables import Table
from dprec_kernels.dense_noise import dense_noise


class Dense(NoiseSchedule):
    """Noise for every row in every step, as without any strategy, but drawn and applied piece by piece.

    Neither gradient nor noise is ever as large as the table, which saves two thirds of the memory and much of the time.
    It needs SGD, without momentum: the step of a row is taken where its noise is drawn.
    """

    def step(self, table: Table, rows: Tensor, values: Tensor, rates: Rates) -> None:
        weights = table.parameter.detach()
        keep = 1 - rates.rate * rates.decay
        noise = self.noise.beside(weights)
        dense_noise(weights, self.std, noise, alpha=-rates.rate, keep=keep, rows=rows, values=values)

    def phrase(self, sigma: float) -> str:
        return f"dense noise on {', '.join(self.tables)}"
