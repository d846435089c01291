"""Compares what users add: by plain autograd in float64, alone and among others, and by the engine."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dprec.checks.same_draws import SameDraws
from dprec.errors import FailsForOneUser, MixedUsers, UserError
from dprec.gradients.clipping import LARGEST, SMALLEST
from dprec.gradients.intercept import leaves, nodes
from dprec.gradients.uses.low_precision import without_autocast
from dprec.verify.in_double import LOW, InDouble
from dprec.verify.recount import Engine, Recount, Vector, add_to, less, norm, recount, squares
from dprec_kernels.ordering import is_among

_log = logging.getLogger(__name__)

SAME_LOSS = 1e-6  # tolerance for equal losses in float64, relative to 1 + loss
SAME_ENGINE_LOSS = 1e-5  # the same in float32
TOUCHING = 1e-3  # relative to its norm: how much a user's gradient may differ among others
ROUGH = 1e-4  # a gradient of a smaller norm, in the model's own precision, is rounding error
# How many clipping norms the engine's results may differ. In bfloat16, rounding hides all but gross errors.
SUM = 2e-3  # times √users: a sum, from autograd's
FACTOR = 1e-3  # a user's clipped norm, from that of the exact gradient
AMONG = 1e-2  # a user's clipped norm among others, from alone
LOW_BOUND = 0.5  # any of these in bfloat16
CONDITION = 4.0  # in addition, so many times float32's own error in the gradient


class BrokenPromise(UserError):
    """What the step would release does not match the guarantee."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"the run stops before a step that would break its guarantee: {found}; report the model, or leave out what "
            "uses that parameter"
        )


@dataclass
class Plain:
    """Losses of a micro-batch by plain autograd."""

    part: Any
    losses: Tensor
    graph: InDouble
    by_user: bool  # whether losses drew numbers for users that depend on other users

    def gradient(self, weights: Tensor) -> Vector:
        """Return the gradient of the weighted losses; for one user it is weighted afterwards, past any hook."""
        one = len(self.losses) == 1
        found = self.graph.gradients((self.losses if one else self.losses * weights.to(self.losses)).sum())
        return {name: g * float(weights) if one else g for name, g in found.items()}

    def of(self, place: int) -> Vector:
        return self.graph.gradients(self.losses[place])


class Judge:
    """Compares what users add, alone and together in micro-batches (`company`), at the current weights."""

    def __init__(self, engine: Engine, company: Sequence[Any]) -> None:
        self.engine, self._company = engine, company
        self._device = next((p.device.type for p in engine.parameters.values()), "cpu")
        self._coarse = any(p.dtype in LOW[1:] for p in engine.parameters.values())
        self._double = True
        self._own: dict[int, Recount] = {}  # of the company's users, each alone
        self._user: list[Plain] = []  # the user who was compared last
        self.exact: Vector = {}  # this user's gradient

    def problem(self, alone: Any) -> UserError | None:
        """Return an error if something is wrong with what a user adds; `alone` is the user's batch."""
        company, own = self.together, self.of(alone)
        self._user = [user := self._plain(alone)]
        self.exact = user.gradient(torch.ones(1))
        return (
            self._of_company(user)  # first: a batch of one is filled up with copies, so it has company, too
            or self._of_sum(own)
            or self._of_factor(alone, own)
            or self._of_together
            or self._of_factor_among(own, company)
            or self._of_counts(own)
        )

    def is_even(self, alone: Any) -> bool:
        """Whether a user of the company has exactly this user's loss and norm, to the last bit.

        Every number of a gradient enters its norm.
        """
        own, company = self.of(alone).measured()[:, :2], self.together.measured()[:, :2]
        return self.together.by_user or bool(own.isnan().any() or (company == own).all(1).any())

    def of(self, alone: Any) -> Recount:
        """Return the engine's sum for a user alone."""
        if id(alone) not in self._own:
            self._own[id(alone)] = self.recount([alone])
        return self._own[id(alone)]

    def has_same_loss(self, alone: Any) -> bool:
        """Whether a user of the company has this user's loss."""
        own = float(self._plain(alone).losses.detach().sum())
        losses = [float(loss) for plain in self._among for loss in plain.losses.detach()]
        near = any(abs(loss - own) <= SAME_LOSS * (1 + abs(own)) for loss in losses)
        return near or any(plain.by_user for plain in self._among)

    @cached_property
    def together(self) -> Recount:
        """The engine's sum for the company."""
        return self.recount(self._company)

    def finite(self) -> int:
        """Return how many users of the company have a finite loss."""
        return sum(int(users.losses.isfinite().sum()) for _, users in self.together.pieces)

    def recount(self, parts: Sequence[Any]) -> Recount:
        """Return the engine's sum for these micro-batches, in the parameters' precision."""
        with nullcontext() if self._coarse else without_autocast(self._device):
            return recount(self.engine, parts)

    def _plain(self, part: Any, double: bool = True) -> Plain:
        """Return losses in float64, or in the model's own precision if it does not run in float64."""
        engine, self._double = self.engine, self._double and not self._coarse
        double &= self._double
        graph = InDouble(engine.parameters, engine.tables, double)
        try:
            with (
                torch.autocast(self._device, enabled=False),  # torch's own layers do not all run in bfloat16
                SameDraws(part, engine.streams) as draws,
                graph,
            ):
                losses = engine.losses(part)
            met = {id(leaf) for leaf in leaves(losses, nodes(losses))} if double else set()
            if any(id(parameter) in met for parameter in engine.parameters.values()):
                raise RuntimeError("an autograd.Function is given parameters themselves")
        except Exception as error:
            if not double or (isinstance(error, UserError) and not isinstance(error, FailsForOneUser)):
                raise
            _log.debug("the model does not run in float64, so shares are compared in its own precision: %s", error)
            self._double = False
            return self._plain(part)
        return Plain(part, losses, graph, draws.by_user and len(part) > 1)

    def _of_sum(self, found: Recount) -> UserError | None:
        """Return an error if a sum is not autograd's for the users' losses, weighted by the engine's factors."""
        bound, count = self.engine.clipping.max_norm, sum(len(part) for part, _ in found.pieces)
        for _, users in found.pieces:
            finite = users.norms < LARGEST
            if bool((finite & (users.scales == 0)).any()):
                return BrokenPromise("a user whose gradient is finite is left out of the sum")
            if not bool(finite.all()):
                return None  # a user who is left out has no finite gradient
        exact = self._weighted(found)
        apart = squares(less(found.total, exact))
        off, allowed = sum(apart.values()) ** 0.5, bound * (LOW_BOUND if self._coarse else SUM * count**0.5)
        if off <= allowed:
            return None
        rough = self._weighted(found, double=False)
        if not off > allowed + CONDITION * norm(less(rough, exact)):  # also if it is NaN
            return None
        many = f"the sum of {count} users is", "what autograd gives for their weighted losses"
        what, truth = many if count > 1 else ("what is added for a user is", "the user's own clipped gradient")
        worst = max(apart, key=apart.__getitem__)
        return BrokenPromise(f"parameter '{worst}': {what} off by {off / bound:.2g} clipping norms from {truth}")

    def _weighted(self, found: Recount, double: bool = True) -> Vector:
        total: Vector = {}
        known = {id(plain.part): plain for plain in (*self._among, *self._user)} if double else {}
        for part, users in found.pieces:
            plain = known.get(id(part)) or self._plain(part, double)
            weights = users.scales.cpu().masked_fill(users.losses.isnan(), 0.0)  # a user with a NaN loss counts alone
            for name, value in plain.gradient(weights).items():
                add_to(total, name, value)
        return total

    @cached_property
    def _of_together(self) -> UserError | None:
        return None if self._coarse else self._of_sum(self.together)

    def _of_factor(self, alone: Any, own: Recount) -> UserError | None:
        """Return an error if a user counts for more than the exact gradient, clipped, or not at all.

        The engine may scale a gradient down further if its terms cancel.
        """
        clipping, size, scale = self.engine.clipping, norm(self.exact), float(own.pieces[0][1].scales[0])
        right = float(clipping.scale(torch.tensor(size, dtype=torch.float64))) if size < LARGEST else 0.0
        more, dropped = (scale - right) * size / clipping.max_norm, scale == 0 and right * size > clipping.max_norm / 2
        allowed = LOW_BOUND if self._coarse else FACTOR
        if not right or (more <= allowed and not dropped):
            return None
        error = norm(less(self._plain(alone, double=False).gradient(torch.ones(1)), self.exact)) / size if size else 0.0
        if not error < LARGEST or (not dropped and more <= allowed + CONDITION * error):
            return None
        if dropped:
            return BrokenPromise("a user whose gradient is finite is left out")
        return BrokenPromise(f"a user counts for {more:.2g} clipping norms more than the user's own clipped gradient")

    @cached_property
    def _among(self) -> list[Plain]:
        return [self._plain(part) for part in self._company]

    def _of_company(self, user: Plain) -> UserError | None:
        """Return an error if no user of the company has this user's gradient."""
        size, loss = norm(self.exact), float(user.losses.detach().sum())
        if any(plain.by_user for plain in self._among) or not size < LARGEST:
            return None
        each = [
            (abs(float(other) - loss), plain, row)
            for plain in self._among
            for row, other in enumerate(plain.losses.detach())
        ]
        each.sort(key=lambda one: one[0])
        same_loss = [one for one in each if one[0] <= SAME_LOSS * (1 + abs(loss))] or each[:1]  # those with this loss
        least, worst = float("inf"), ""
        for _, plain, row in same_loss:
            apart = squares(less(plain.of(row), self.exact))
            off = sum(apart.values()) ** 0.5 / max(size, SMALLEST if self._double else ROUGH)
            if off <= TOUCHING or not off < float("inf"):  # not finite: left to the engine, alone
                return None
            if off < least:
                least, worst = off, max(apart, key=apart.__getitem__)
        return MixedUsers(
            f"parameter '{worst}': a user's gradient depends on who else is in the batch, or on their padding (by "
            f"{least:.2g} of its norm): compute loss u and row u from user u alone"
        )

    def _of_factor_among(self, own: Recount, company: Recount) -> UserError | None:
        """Return an error if no user of the company with this user's loss is clipped by the same factor."""
        (loss, _, scale), every = own.measured()[0], company.measured()
        if self._coarse or company.by_user or loss.isnan():
            return None
        same_loss = every[(every[:, 0] - loss).abs() <= SAME_ENGINE_LOSS * (1 + loss.abs())]
        more = ((same_loss[:, 2] - scale) * norm(self.exact) / self.engine.clipping.max_norm).tolist()
        least = min(more, key=abs, default=0.0)
        if abs(least) <= AMONG:
            return None
        return BrokenPromise(f"a user counts for {least:.2g} clipping norms more among others than alone")

    def _of_counts(self, own: Recount) -> UserError | None:
        """Return an error if rows with a user's gradient are not counted."""
        changed = self.engine.strategies.rows_with_gradient(self.exact)
        missed = sum(int((~is_among(rows, mine)).sum()) for rows, mine in zip(changed, own.counted, strict=True))
        if missed:
            return BrokenPromise(f"{missed} rows of a table that a user moves are not counted when rows are chosen")
        return None
