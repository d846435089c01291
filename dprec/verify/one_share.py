"""What one user adds: by plain autograd in float64, by the engine alone, and among others."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dprec.checks.entropy import Streams
from dprec.checks.one_user import SparseLookUps
from dprec.checks.same_draws import SameDraws
from dprec.contract import Losses
from dprec.distributed.host_tables import network_device
from dprec.errors import UserError
from dprec.gradients.clipping import LARGEST, ROUNDINGS, SMALLEST, Clipping
from dprec.gradients.own_functions import OwnFunctions
from dprec.gradients.tape import Read
from dprec.gradients.uses.batches import Alone, select_alone
from dprec.gradients.uses.low_precision import without_autocast
from dprec.sparsity.rows.row_rules import RowRules
from dprec.verify.in_double import LOW, exact_gradient
from dprec.verify.recount import Counted, Recount, Vector, less, norm, plus, recount, squares
from dprec_kernels.ordering import is_among
from dprec_kernels.sparse import of_rows

_log = logging.getLogger(__name__)

# By how many clipping norms what is compared may differ. In bfloat16 only gross errors can be told from rounding.
ALONE = 1e-3  # the engine's share of one user, from the exact one
AMONG = 2e-3  # times √users: the difference that a user makes to a sum, from the share; a sum, from autograd's
SAME = 1e-4  # times √users: a sum from itself, done again
LOW_BOUND = 0.5  # either of them in bfloat16
CONDITION = 4.0  # and by so many times what float32 by itself puts into the gradient
HOPELESS = 0.1  # from here on float32 has no digits of a gradient left, and only sums can be compared
LARGER = 1e-2  # the engine's norm, which has what rounding may hide added to it, relative to the exact one
HELD = 1 << 20  # numbers of a table up to which its sum of rows is compared as the whole table
NUMBERS = 64  # entries by which a sum is found to be rounded to bfloat16


class Judge:
    """Compares shares at the weights as they are."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        tables: Collection[str],
        losses: Losses,
        clipping: Clipping,
        rules: RowRules,
        streams: Streams,
        alone: Alone = select_alone,
    ) -> None:
        self._parameters, self._tables, self._losses = parameters, tables, losses
        self._clipping, self._rules, self._streams, self._alone = clipping, rules, streams, alone
        self._device = network_device(parameters.values()).type
        self._coarse = any(p.dtype in LOW[1:] for p in parameters.values())
        self._hooked = False  # whether losses put a hook on a gradient
        self.low = self._coarse or torch.is_autocast_enabled(self._device)
        self.exact: Vector = {}
        self._everywhere: Vector = {}  # also in rows that may not change in this step

    def gradient(self, alone: Sequence[Any]) -> Vector:
        """Return one user's exact gradient, without the rows that may not change in this step.

        A model that does not run in float64 has to do with the gradient of plain autograd in its own precision.
        """
        try:
            found = exact_gradient(self._parameters, self._tables, self._losses, alone[0], self._streams)
        except UserError:
            raise
        except Exception as error:
            _log.debug("the model does not run in float64, so shares are compared in its own precision: %s", error)
            found = self._plain(alone[0])
        self._everywhere = {name: g.coalesce() if g.is_sparse else g for name, g in found.items()}
        return self._allowed(self._everywhere)

    def problem(
        self, alone: Sequence[Any], with_user: Sequence[Any], without: Sequence[Any], read: Read | None = None
    ) -> str | None:
        """Say in what way the engine does wrong by this user, if it does."""
        self.exact = self.gradient(alone)
        with nullcontext() if self._coarse else without_autocast(self._device):
            own, together, others = (self._recount(parts, read) for parts in (alone, with_user, without))
        found = self._problem_alone(alone, own) or _rounded(together) or self._problem_of_sum(with_user, together)
        if found is not None or together.by_user or others.by_user:  # draws depend on the user's place, which differs
            return found
        found = self._problem_among(own, together, others, sum(map(len, with_user)))
        if found is not None or not self.low or self._coarse:
            return found
        together, others = self._recount(with_user, read), self._recount(without, read)
        return _rounded(together) or self._problem_in_bfloat16(less(together.total, others.total))

    def fulfilled(self, alone: Sequence[Any], without: Sequence[Any], released: Vector) -> bool:
        """Whether it is plain that a sum is the others' and this user's share; nothing was drawn at random for it."""
        if self.low or self._rules.look:
            return False
        self.exact = self.gradient(alone)
        own, others = self._recount(alone, None), self._recount(without, None)
        if any(t.is_sparse and not released[name].is_sparse and t.numel() > HELD for name, t in others.total.items()):
            return False  # to compare them would take memory of the table's size
        if self._problem_alone(alone, own) or _rounded(Recount(released, others.clipped)):
            return False
        off = norm(less(less(released, others.total), own.total))
        return off <= SAME * (1 + sum(map(len, without))) ** 0.5 * self._clipping.max_norm

    def _recount(self, parts: Sequence[Any], read: Read | None) -> Recount:
        return recount(
            self._parameters,
            self._tables,
            self._losses,
            parts,
            self._clipping,
            self._rules,
            self._streams,
            read,
            alone=self._alone,
        )

    def _problem_alone(self, alone: Sequence[Any], own: Recount) -> str | None:
        size = norm(self.exact)
        known = size < LARGEST  # also not where it is no number
        scale = float(self._clipping.scale(torch.tensor(size, dtype=torch.float64))) if known else 0.0
        share = {name: scale * value for name, value in self.exact.items()} if known else {}
        apart = squares(less(own.total, share))
        mine, wanted, off = norm(own.total) ** 2, norm(share) ** 2, sum(apart.values())
        # The engine may scale a gradient down whose terms cancel, never up: what is compared is the direction.
        along = (mine + wanted - off) / 2
        part = min(1.0, max(0.0, along / wanted)) if wanted else 0.0
        residual = max(0.0, mine - 2 * part * along + part**2 * wanted) ** 0.5
        bound, allowed = self._clipping.max_norm, LOW_BOUND if self._coarse else ALONE
        dropped = bool(own.clipped[0].scales[0] == 0) and scale * size > 0.5 * bound
        found, slack = float(own.clipped[0].norms[0]), SMALLEST
        if self._clipping.mode == "flat":  # what rounding puts into a share may be so much, as it is
            slack = max(slack, bound / ROUNDINGS)
        by_norm = own.clipped[0].scales[0] > 0.99 * self._clipping.scale(own.clipped[0].norms)[0]  # and not by rounding
        larger = known and not self._coarse and bool(by_norm) and found > size * (1 + LARGER) + slack
        if residual <= allowed * bound and not dropped and not larger:
            return None
        error = self._rounding(alone)
        if error is None:
            return None
        worst = max(apart, key=apart.__getitem__, default="")
        if larger and not dropped and found > size * (1 + LARGER + ROUNDINGS * error):
            return f"parameter '{worst}': a user's gradient has norm {size:.4g}, and the engine finds {found:.4g}"
        if not dropped and (error > HOPELESS or residual <= (allowed + CONDITION * error) * bound):
            return None
        if dropped:
            return f"parameter '{worst}': a user whose gradient is finite is left out"
        return (
            f"parameter '{worst}': what is added for a user is off by {residual / bound:.2g} clipping norms from the "
            "user's own clipped gradient"
        )

    def _problem_of_sum(self, parts: Sequence[Any], summed: Recount) -> str | None:
        """Say that the sum is not what autograd gives for the losses, each weighted by the engine's factor."""
        if self._coarse:
            return None
        if len(parts) != len(summed.clipped):
            return None  # some were taken one by one
        plain: Vector = {}
        for part, users in zip(parts, summed.clipped, strict=True):
            finite = users.norms < LARGEST
            if bool((finite & (users.scales == 0)).any()):
                return "a user whose gradient is finite is left out of the sum"
            if not bool(finite.all()):
                return None  # what is left out has no number
            plain = plus(plain, self._plain(part, users.scales))
        if self._hooked:
            return None  # what a hook makes of a weighted gradient need not be so much of what it makes of the gradient
        if not norm(plain) < LARGEST:
            return None  # as the engine, which takes one by one whose gradient others' padding breaks
        apart = squares(less(summed.total, self._allowed(plain)))
        count, off = sum(map(len, parts)), sum(apart.values()) ** 0.5
        if off <= AMONG * count**0.5 * self._clipping.max_norm:
            return None
        return (
            f"parameter '{max(apart, key=apart.__getitem__)}': the sum of {count} users is off by "
            f"{off / self._clipping.max_norm:.2g} clipping norms from what autograd gives for their weighted losses"
        )

    def _plain(self, part: Any, weights: Tensor | float = 1.0) -> Vector:
        """Return the gradient of the users' weighted losses, in the precision of the parameters."""
        exactly = torch.autocast(self._device, enabled=False)  # torch's own layers do not all run in bfloat16
        with (
            exactly,
            SameDraws(part, self._streams) as draws,
            SparseLookUps([self._parameters[name] for name in self._tables]),
            OwnFunctions(),
        ):
            loss = (self._losses(part).double() * weights).sum()
            found = torch.autograd.grad(loss, list(self._parameters.values()), allow_unused=True)
        self._hooked |= draws.hooked
        return {name: g for name, g in zip(self._parameters, found, strict=True) if g is not None}

    def _allowed(self, gradient: Vector) -> Vector:
        """Return the gradient without rows that may not change in this step."""
        kept = {}
        for name, value in gradient.items():
            rows = self._rules.chosen(name)
            if rows is not None and value.is_sparse:
                value = value.coalesce()
                there = is_among(value.indices()[0], rows.to(value.device))
                value = of_rows(value.indices()[0, there], value.values()[there], value.shape, merged=True)
            kept[name] = value
        return kept

    def _problem_among(self, own: Recount, all_users: Recount, others: Recount, users: int) -> str | None:
        made = less(all_users.total, others.total)
        apart = squares(less(made, own.total))
        bound = self._clipping.max_norm
        allowed = LOW_BOUND * bound if self._coarse else AMONG * users**0.5 * bound
        worst = max(apart, key=apart.__getitem__)
        off, size = sum(apart.values()) ** 0.5, norm(made)
        if not (off <= allowed and size <= bound + allowed):
            return (
                f"parameter '{worst}': with one user more the sum of {users} users moves by {size / bound:.3g} "
                f"clipping norms, {off / bound:.2g} away from that user's share: it depends on who else is in the batch"
            )
        for one, several, rest in zip(own.counted, all_users.counted, others.counted or _nothing(own), strict=True):
            if not torch.equal(several.alike, one.alike) or (
                len(rest.alike) and not torch.equal(rest.alike, one.alike)
            ):
                return "which rows of a table all users are said to read depends on who is in the batch"
            if not torch.equal(several.rows, torch.cat([rest.rows, one.rows]).sort()[0]):
                return "which rows of a table a user is counted in depends on who else is in the batch"
        return self._uncounted(own)

    def _problem_in_bfloat16(self, made: Vector) -> str | None:
        size = norm(made) / self._clipping.max_norm
        if size <= 1 + LOW_BOUND:
            return None
        return f"with one user more the sum in bfloat16 moves by {size:.3g} clipping norms"

    def _uncounted(self, own: Recount) -> str | None:
        """Say that rows that a user moves are counted for nobody."""
        for moved, counted in zip(self._rules.moved(self._everywhere), own.counted, strict=True):
            missed = ~(is_among(moved, counted.rows.unique()) | is_among(moved, counted.alike))
            if bool(missed.any()):
                return f"{int(missed.sum())} rows of a table that a user moves are not counted when rows are chosen"
        return None

    def _rounding(self, alone: Sequence[Any]) -> float | None:
        """Return what float32 by itself makes of the gradient, relative; None where it makes nothing of it."""
        plain = self._allowed(self._plain(alone[0]))
        if not norm(plain) < LARGEST:
            return None
        size = norm(self.exact)
        return norm(less(plain, self.exact)) / size if size else 0.0


def _rounded(found: Recount) -> str | None:
    """Say that a sum has been rounded to bfloat16, although every user's factor has more digits."""
    scales = torch.cat([torch.zeros(0), *(users.scales.double().cpu() for users in found.clipped)])
    if not bool(scales.any()) or bool(_in_bfloat16(scales[scales != 0]).any()):
        return None
    for name, value in found.total.items():
        numbers = (value.coalesce().values() if value.is_sparse else value).flatten()
        numbers = numbers[numbers != 0][: 1 << 16]
        if len(numbers) >= NUMBERS and bool(_in_bfloat16(numbers).all()):
            return f"parameter '{name}': the sum of the users' gradients is rounded to bfloat16"
    return None


def _in_bfloat16(numbers: Tensor) -> Tensor:
    return numbers.bfloat16().to(numbers.dtype) == numbers


def _nothing(like: Recount) -> list[Counted]:
    return [Counted(counted.rows[:0], counted.alike[:0]) for counted in like.counted]
