"""EANA: noise for the rows that a batch touches, and for no others."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from dprec.sparsity.rows.kinds import TOUCHED, RowChoice, Touched


class EANA(RowChoice):
    """Adds a step's noise to rows with a gradient alone: as fast as training without privacy, and not private.

    Which rows have moved tells what was in the batch: a row still at its start was in nobody's history, and a row
    that a single user touches gives that user away. There is no ε for it; `privacy.noise_multiplier` says how much
    noise there is.
    """

    broken: ClassVar[str | None] = "EANA adds noise to touched rows only, so which rows moved shows what users did"

    def choose(self, batch: object, among: Tensor | None) -> Touched:
        return TOUCHED
