"""A catalogue softmax's gradients for every row of its table, for each user, without storing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dprec.gradients.contributions.base import (
    Contribution,
    Line,
    SquaredNorms,
    all_of,
    zeroed,
)
from dprec.gradients.contributions.look_ups import Rows, joined
from dprec_kernels.catalogue_softmax import UserSoftmaxes, add_table_gradient, overlaps, pieces, squared_norms
from dprec_kernels.joint import Softmaxes
from dprec_kernels.wide_sum import lengths
from dprec_kernels.workspace import workspace


@dataclass
class CatalogueRows(Contribution):
    """Σ_t weight_t (softmax_t - one-hot_t) hiddenᵀ_t, computed again when it is needed."""

    hidden: Tensor  # (B, T, d)
    table: Tensor  # (items, d)
    target: Tensor  # (B, T)
    log_total: Tensor  # (B, T)
    weight: Tensor  # (B, T)
    padding: int
    softmaxes: UserSoftmaxes | Tensor  # or the highest probability (B, T), if scores are computed again

    def materialise(self, out: Tensor, users: slice) -> None:
        built = workspace.take("gradients of a catalogue", out.shape, self.hidden)
        self.write(built, users)
        out += built

    def write(self, out: Tensor, users: slice) -> None:
        if out.dtype != self.hidden.dtype:
            super().write(out, users)
            return
        if isinstance(self.softmaxes, UserSoftmaxes):
            self.softmaxes.write_gradients(out, users, self.weight)
        else:
            given = self.hidden[users], self.target[users], self.log_total[users], self.weight[users]
            own = given[0], self.table, *given[1:]
            pieces.add_users_gradients(out.zero_(), *own, self.padding)

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        """Compute them from the overlaps of a user's softmaxes; others may be rows read from the same table."""
        reads, known = all_of(Rows, others), self.softmaxes
        if reads is None or (isinstance(known, UserSoftmaxes) and known.products is None):
            return None
        ids, values = self._beside(reads)
        if isinstance(known, UserSoftmaxes):
            return lambda: overlaps.squared_norms(known, self.weight, ids, values)
        return lambda: squared_norms(
            self.hidden, self.table, self.target, self.log_total, self.weight, ids, values, self.padding
        )

    def _beside(self, reads: Sequence[Rows]) -> tuple[Tensor, Tensor]:
        return joined(reads) if reads else (self.target[:, :0], self.hidden[:, :0])

    def add_to(self, total: Tensor, weight: Tensor) -> None:
        each = self.weight * weight.unsqueeze(1)
        if isinstance(self.softmaxes, UserSoftmaxes):
            self.softmaxes.add_gradient(total, each)
            return
        add_table_gradient(total, self.hidden, self.table, self.target, self.log_total, each, self.padding)

    def terms(self) -> Tensor:
        each = self.weight.abs() * lengths(self.hidden) * 2**0.5
        return each.masked_fill(self.target == self.padding, 0.0).sum(1)

    def lines(self) -> Line | None:
        if isinstance(self.softmaxes, UserSoftmaxes) or self.log_total.dtype != torch.float32:
            return None
        given = self.hidden, self.weight, self.log_total, self.softmaxes, self.target
        return Softmaxes(*given, self.padding, len(self.table))

    def forget(self, lost: Tensor) -> None:
        if isinstance(self.softmaxes, UserSoftmaxes):
            self.softmaxes.forget(lost)
        self.hidden = zeroed(self.hidden, lost)
        self.log_total = zeroed(self.log_total, lost)
        self.weight = zeroed(self.weight, lost)
