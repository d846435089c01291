"""Noise for every row in every step, as in plain DP-SGD, or only for rows that the batch touches, as in EANA."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from dprec.sparsity.rows.kinds import TOUCHED, NoiseSchedule, Rates, RowChoice, Touched
from dprec.sparsity.rows.tables import Table
from dprec_kernels.dense_noise import dense_noise


class EANA(RowChoice):
    """Adds a step's noise only to rows with a gradient: as fast as training without privacy, but not private.

    Use it only as a baseline. The rows that changed reveal what was in the batch. An unchanged row was in no history,
    and a row that a single user touches reveals that user. There is no ε for it; `privacy.noise_multiplier` sets how
    much noise there is.

    Args:
        tables: names of the tables it rules over, with * and ? as in file names; all embeddings by default.
        least_rows: smaller tables are left to dense noise.

    >>> from dprec import Privacy
    >>> from dprec.sparsity import EANA
    >>> Privacy(noise_multiplier=1.0, sparsity=EANA()).spent_at_most
    inf
    """

    broken: ClassVar[str | None] = "EANA adds noise to touched rows only, so which rows moved shows what users did"

    def choose(self, batch: object, among: Tensor | None) -> Touched:
        return TOUCHED


class Dense(NoiseSchedule):
    """Noise for every row in every step, as without any strategy, but drawn and applied piece by piece.

    Neither gradient nor noise is ever as large as the table, which saves two thirds of the memory and much of the time.
    It needs SGD without momentum: a row's step is taken when its noise is drawn.

    Args:
        tables: names of the tables it rules over, with * and ? as in file names; all embeddings by default.
        least_rows: smaller tables are left as they are without a strategy.

    >>> from dprec import Privacy
    >>> from dprec.sparsity import Dense
    >>> privacy = Privacy(epsilon=3, sparsity=Dense(least_rows=10_000))
    """

    def step(self, table: Table, rows: Tensor, values: Tensor, rates: Rates) -> None:
        weights = table.parameter.detach()
        keep = 1 - rates.rate * rates.decay
        noise = self.noise.beside(weights)
        dense_noise(weights, self.std, noise, alpha=-rates.rate, keep=keep, rows=rows, values=values)

    def phrase(self, sigma: float) -> str:
        return f"dense noise on {', '.join(self.tables)}"
