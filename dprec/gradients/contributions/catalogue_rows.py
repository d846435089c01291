"""What a catalogue softmax adds to each user's gradient of its table: to every row, without a matrix of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from dprec.gradients.contributions.base import (
    ROUNDED,
    Contribution,
    Line,
    Places,
    SquaredNorms,
    all_of,
    listed,
    zeroed,
)
from dprec.gradients.contributions.look_ups import Rows, joined
from dprec_kernels.catalogue_softmax import add_table_gradient, on_chip, overlaps, pieces, squared_norms
from dprec_kernels.catalogue_softmax.pieces import Group, Prepared
from dprec_kernels.joint import Softmaxes
from dprec_kernels.wide_sum import lengths
from dprec_kernels.workspace import workspace


@dataclass
class CatalogueRows(Contribution):
    """Σ_t weight_t (softmax_t - one-hot_t) hiddenᵀ_t, rebuilt when asked."""

    of_table: ClassVar[bool] = True

    hidden: Tensor  # (B, T, d)
    table: Tensor  # (items, d)
    target: Tensor  # (B, T)
    log_total: Tensor  # (B, T)
    weight: Tensor  # (B, T)
    padding: int
    groups: list[Group]  # all users
    _last: tuple[int, Prepared] | None = field(default=None, init=False, repr=False)

    def materialise(self, out: Tensor, places: Places) -> None:
        built = workspace.take("gradients of a catalogue", out.shape, self.hidden)
        self.write(built, places)
        out += built

    def write(self, out: Tensor, places: Places) -> None:
        if out.dtype != self.hidden.dtype:
            super().write(out, places)
            return
        chosen = listed(places, len(self.hidden))
        again = []
        for place, user in enumerate(chosen):
            group, row = self._homes[user]
            if self.groups[group].kept is None:
                again.append(place)
            else:
                pieces.write_user_gradient(out[place], self._prepared(group), row)
        if again:
            rows = [chosen[place] for place in again]
            part = out if len(again) == len(out) else out[again]
            pieces.add_users_gradients(
                part.zero_(), self.hidden[rows], self.table, self.target[rows], self.log_total[rows], self.weight[rows],
                self.padding,
            )  # fmt: skip
            if part is not out:
                out[again] = part

    @cached_property
    def _homes(self) -> dict[int, tuple[int, int]]:
        """Every user's group and place in it."""
        return {user: (n, row) for n, group in enumerate(self.groups) for row, user in enumerate(group.users.tolist())}

    def _prepared(self, group: int) -> Prepared:
        """Return what a group's gradients are products of. The last is kept: users of a group come together."""
        if self._last is None or self._last[0] != group:
            own = (self.hidden, self.target, self.log_total, self.weight)
            self._last = (group, pieces.prepare(self.groups[group], *own, self.padding))
        return self._last[1]

    @property
    def on_chip(self) -> bool:
        """Whether norms and sums of all users are one launch each, from what was kept of the forward pass."""
        return on_chip(self.hidden)

    def squared_norms(self, others: Sequence[Contribution]) -> SquaredNorms | None:
        """On such a device a kernel takes them, rows read from the same table included."""
        reads = all_of(Rows, others)
        if reads is None or not self.on_chip:
            return None
        ids, values = self._beside(reads)
        return lambda: squared_norms(
            self.hidden, self.table, self.target, self.log_total, self.weight, ids, values, self.padding
        )

    def _beside(self, reads: Sequence[Rows]) -> tuple[Tensor, Tensor]:
        return joined(reads) if reads else (self.target[:, :0], self.hidden[:, :0])

    def some_squared_norms(self, others: Sequence[Contribution]) -> list[tuple[Tensor, Tensor]]:
        """The norm follows from the overlaps of a user's softmaxes, rows read from the same table included."""
        reads, known = all_of(Rows, others), [group for group in self.groups if group.products is not None]
        if reads is None or not known:
            return []
        ids, values = self._beside(reads)
        return [(group.users, self._squared_norms(group, ids, values)) for group in known]

    def _squared_norms(self, group: Group, ids: Tensor, values: Tensor) -> Tensor:
        return overlaps.squared_norms(
            group, self.hidden, self.table, self.target, self.log_total, self.weight, ids, values, self.padding
        )

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        each = self.weight * weight.unsqueeze(1)
        if self.on_chip:
            hidden, target, log_total = (x.flatten(0, 1) for x in (self.hidden, self.target, self.log_total))
            add_table_gradient(out, hidden, self.table, target, log_total, each.flatten(), self.padding)
            return
        some = [group for group in self.groups if bool(weight[group.users].any())]
        pieces.add_groups_gradient(out, some, self.hidden, self.table, self.target, self.log_total, each, self.padding)

    def add_wide(self, total: Tensor, weight: Tensor) -> None:
        self.add_weighted(total, weight)  # the kernels add to wider totals by parts

    def terms(self) -> Tensor:
        """Return (B,) the sum of the norms of what is added up, and of how much more the chances are rounded.

        A chance is exp(score - log total): its relative error is that of a number as large as the two, and of large
        ones it grows as the exponential does, until each may be 1. All of a position's have norm √(the largest) at
        most.
        """
        doubt, eps = torch.zeros_like(self.log_total), torch.finfo(self.log_total.dtype).eps
        for group in self.groups:
            own = (group.users, slice(group.length))
            off = torch.expm1(ROUNDED * eps * self.log_total[own].abs()) * group.likeliest.sqrt()
            doubt[own] = off.clamp_(max=len(self.table) ** 0.5) / (ROUNDED * eps)
        each = self.weight.abs() * lengths(self.hidden) * (2**0.5 + doubt)
        return each.masked_fill(self.target == self.padding, 0.0).sum(1)

    def lines(self) -> Line | None:
        if not self.on_chip or self.log_total.dtype != torch.float32:
            return None
        (group,) = self.groups
        given = self.hidden, self.weight, self.log_total, group.likeliest, self.target
        return Softmaxes(*given, self.padding, len(self.table))

    def forget(self, lost: Tensor) -> None:
        for group in self.groups:
            if group.kept is not None and bool(lost[group.users].any()):
                group.kept = None
        self._last = None
        self.hidden = zeroed(self.hidden, lost)
        self.log_total = zeroed(self.log_total, lost)
        self.weight = zeroed(self.weight, lost)
