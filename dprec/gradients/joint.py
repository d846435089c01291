"""Small gradients of several parameters, side by side: on a card one launch serves them all."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.look_ups import Rows
from dprec.gradients.row_sum import RowSum
from dprec_kernels.paths import answers_at_once

JOINT = "(side by side)"
READS = "(one read of each table)"


class Joint:
    """The contributions to each parameter, and where they are added up, with a single one for all that are small.

    A norm over all parameters is what is wanted, and that of vectors side by side is the same. So are rows `measured`
    that a user reads of several tables, one of each; they are added to the tables apart.
    """

    def __init__(self, contributions: Mapping[str, list[Contribution]], sums: Mapping[str, Tensor | RowSum]) -> None:
        self.contributions, self.sums = dict(contributions), dict(sums)
        self._apart: list[Tensor] = []
        values = []
        for name, uses in contributions.items():
            out, use = sums[name], uses[0]
            if len(uses) == 1 and isinstance(use, Dense) and isinstance(out, Tensor) and _small(use, out):
                values.append(use.values.reshape(len(use.values), out.numel()))
                self._apart.append(out)
                del self.contributions[name]
        if values:
            whole = torch.cat(values, 1)
            self.contributions[JOINT] = [Dense(whole)]
            self.sums[JOINT] = torch.zeros(whole.shape[1], dtype=torch.float64, device=whole.device)
        self.measured = dict(self.contributions)
        reads = {name: uses[0] for name, uses in self.contributions.items() if len(uses) == 1 and _one_read(uses[0])}
        if len(reads) > 1:
            rows = [use for use in reads.values() if isinstance(use, Rows)]
            side_by_side = torch.cat([use.values.reshape(len(use.ids), 1, -1) for use in rows], 2)
            self.measured = {name: uses for name, uses in self.measured.items() if name not in reads}
            self.measured[READS] = [Rows(rows[0].ids, side_by_side)]

    def split(self) -> None:
        """Add what was added up together to the sums of the parameters."""
        if self._apart:
            whole = self.sums[JOINT]
            assert isinstance(whole, Tensor)
            parts = whole.split([out.numel() for out in self._apart])
            torch._foreach_add_(
                self._apart, [part.view(out.shape) for part, out in zip(parts, self._apart, strict=True)]
            )


def _one_read(use: Contribution) -> bool:
    """Whether each user's gradient, on a card, is one row."""
    if not isinstance(use, Rows) or answers_at_once(use.ids):
        return False
    return use.ids.shape[1:] == (1,) and use.values.dtype == torch.float32


def _small(use: Dense, out: Tensor) -> bool:
    """Whether these gradients, on a card, are what is summed, and are summed in float64."""
    plain = use.summed is None and use.values.dtype == torch.float32 and out.dtype == torch.float64
    return plain and not answers_at_once(use.values)
