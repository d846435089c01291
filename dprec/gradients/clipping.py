"""Scales each user's gradient to a bounded norm and adds it to the sum; only this file and `norms.sweep` do so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dprec.errors import NoRule, UserError, line_of
from dprec.gradients import norms
from dprec.gradients.alone import OneUser, one_by_one
from dprec.gradients.contributions.base import Contribution
from dprec.gradients.contributions.building import precision
from dprec.gradients.contributions.placed import in_parts
from dprec.gradients.joint import (
    PART,
    READS,
    FusedParameters,
    Product,
    kernels_fit,
    product_of,
    scaled_at_once,
)
from dprec.gradients.row_sum import RowSum
from dprec.gradients.tape import Read, Tape
from dprec.gradients.uses.batches import Alone, filled_up, select_alone
from dprec.gradients.vmapped import vmapped_users
from dprec_kernels.joint import Law
from dprec_kernels.joint import sums as sums_at_once
from dprec_kernels.joint.reference import AUTO_S, AUTO_V, FLAT
from dprec_kernels.processor import in_full

Mode = Literal["auto-v", "auto-s", "flat"]

# Norms of built gradients have a relative error of up to 2e-6, and sums are rounded to float32. Clipping this much
# lower keeps each user's share within the bound.
HEADROOM = 3e-6
# Below this norm "auto-v" stops scaling up: such a gradient is mostly rounding error.
SMALLEST = 1e-6
# If a user's terms cancel, only their rounding errors remain. So each norm counts as at least this fraction of the
# length of the user's terms: then rounding moves a sum by less than the noise's margin for a user.
CANCELLED = 1 / 128
# From this norm on, a float32 factor would lose digits, so the user counts as not finite. `max_norm` is between
# 1 / LARGEST and LARGEST.
LARGEST = 1e30
LEAST_FACTOR = 1e-37  # below, float32 has fewer and fewer digits
# The stabiliser of "auto-s".
STABILITY = 1e-2


@dataclass(frozen=True)
class Clipping:
    """How a user's gradient g is scaled so that its norm is at most `max_norm`.

    - `flat`: g · min(1, C / ‖g‖)
    - `auto-v`: g · C / ‖g‖, every user has the same weight and C needs no tuning
    - `auto-s`: g · C / (‖g‖ + 0.01)

    >>> Clipping("flat", 1.0).scale(torch.tensor([0.5, 4.0]))
    tensor([1.0000, 0.2500])
    """

    mode: Mode = "auto-v"
    max_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.mode not in ("auto-v", "auto-s", "flat"):
            raise UserError(f"privacy.clipping is '{self.mode}'; use auto-v, auto-s or flat")
        if not 1 / LARGEST <= self.max_norm <= LARGEST:
            raise UserError(f"privacy.max_norm is {self.max_norm}; use a number from {1 / LARGEST:g} to {LARGEST:g}")

    def scale(self, norm: Tensor, summand_norm: Tensor | float = 0.0) -> Tensor:
        """Return each norm's factor; 0 if the gradient is not finite or too large.

        `summand_norm` is the norm of the terms that add up to the gradient, if they may cancel.
        """
        bound = self.max_norm * (1 - HEADROOM)
        if not isinstance(summand_norm, Tensor) or summand_norm.dtype != norm.dtype:
            summand_norm = torch.as_tensor(summand_norm).to(norm)
        counted = norm + STABILITY if self.mode == "auto-s" else norm
        least = {"flat": bound, "auto-v": SMALLEST, "auto-s": STABILITY}[self.mode]
        factor = torch.maximum(counted, CANCELLED * summand_norm).clamp_(min=least).reciprocal_().mul_(bound)
        finite = torch.maximum(norm, summand_norm) < self.largest  # False if one is NaN
        return factor.masked_fill_(~finite, 0.0)

    @cached_property
    def largest(self) -> float:
        """The norm from which a gradient gets the factor 0: float32 could not hold a smaller factor exactly."""
        return min(LARGEST, self.max_norm / LEAST_FACTOR)

    @property
    def law(self) -> Law:
        """This clipping as kernels take it."""
        mode, bound = {"flat": FLAT, "auto-v": AUTO_V, "auto-s": AUTO_S}[self.mode], self.max_norm * (1 - HEADROOM)
        return Law(mode, bound, SMALLEST, STABILITY, CANCELLED / PART, self.largest)


@dataclass(frozen=True)
class ClippedUsers:
    """Losses, norms and factors of a micro-batch. Not private."""

    losses: Tensor  # (B,) on the CPU, wherever the model is
    norms: Tensor  # (B,) before clipping
    scales: Tensor  # (B,)
    left_out: list[int]  # users whose scale is 0

    def first(self, users: int) -> ClippedUsers:
        if users == self.losses.shape[0]:
            return self
        left_out = [user for user in self.left_out if user < users]
        return ClippedUsers(self.losses[:users], self.norms[:users], self.scales[:users], left_out)


def together(users: Sequence[ClippedUsers]) -> ClippedUsers:
    """Join the measurements of several micro-batches into one."""
    if len(users) == 1:
        return users[0]
    left_out, before = [], 0
    for one in users:
        left_out += [before + user for user in one.left_out]
        before += len(one.losses)
    losses, norms, scales = (
        torch.cat(each) for each in zip(*((u.losses, u.norms, u.scales) for u in users), strict=True)
    )
    return ClippedUsers(losses, norms, scales, left_out)


@dataclass
class UserGradients:
    """Each user's contributions to every parameter's gradient, before clipping, for one micro-batch."""

    losses: Tensor  # (B,)
    contributions: dict[str, list[Contribution]]
    real: int  # number of users; rows after them fill up the batch and have gradients of 0
    unpadded: Tensor | None = None  # (B,) True for users known to read no rows for others' padding
    host_reads: dict[str, list[Contribution]] | None = None  # on the CPU: ids that a GPU looked up, 1 for a gradient

    @property
    def batch_size(self) -> int:
        return self.losses.shape[0]

    @property
    def is_real(self) -> Tensor:
        """(B,) True for users, False for rows that fill up the batch."""
        return torch.arange(self.batch_size, device=self.losses.device) < self.real


def batch_gradients(
    parameters: Mapping[str, nn.Parameter],
    losses_of: Callable[[Any], Tensor],
    batch: Any,
    read: Read | None = None,
) -> UserGradients:
    """Run one forward and one backward pass over a micro-batch; `read` is called before rows are looked up."""
    filled = filled_up(batch)
    tape = Tape(parameters, len(filled), read, real=len(batch))
    tape.watch(filled)
    return _recorded(tape, losses_of, filled)


def user_gradients(
    parameters: Mapping[str, nn.Parameter],
    losses_of: Callable[[Any], Tensor],
    batch: Any,
    read: Read | None = None,
    within: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
    alone: Alone = select_alone,
    unpadded: bool = False,
) -> Iterator[tuple[Any, UserGradients]]:
    """Yield micro-batches and their users' gradients; if the tape cannot, by torch.vmap or one user at a time.

    Each is computed in the context `within(batch)`. A user's row may be padded to the length of another's history.
    If padding could decide whether or what a user counts, set `unpadded`: then `alone` makes each user's batch.
    """
    try:
        with within(batch):
            whole = batch_gradients(parameters, losses_of, batch, read)
    except NoRule as error:
        why, line = error, line_of(error)
    else:
        yield batch, whole
        return
    why.__traceback__ = None  # which holds all tensors of the pass
    done = 0
    if not unpadded:
        for part, losses, tape in vmapped_users(parameters, losses_of, batch, read, within):
            yield part, UserGradients(losses, tape.contributions, len(part))
            done += len(part)
    for user in one_by_one(batch, why, line, alone if unpadded else select_alone, done):
        with within(user):
            own = gradients_alone(parameters, losses_of, user, read)
        yield user, own


def gradients_alone(
    parameters: Mapping[str, nn.Parameter], losses_of: Callable[[Any], Tensor], user: Any, read: Read | None = None
) -> UserGradients:
    """Return the gradients of a batch of one user, by plain autograd: operations need no rules."""
    return _recorded(OneUser(parameters, read), losses_of, user)


def _recorded(tape: Tape, losses_of: Callable[[Any], Tensor], batch: Any) -> UserGradients:
    try:
        with tape:
            losses = losses_of(batch)
    except NoRule as why:
        if tape.left_torch_at:
            why.args = (f"{why}; if that follows from what leaves torch in {tape.left_torch_at}, compute it in torch",)
        raise
    tape.backward(losses)
    return UserGradients(losses.detach(), tape.contributions, tape.real)


def clip_and_add(sums: Mapping[str, Tensor | RowSum], users: UserGradients, clipping: Clipping) -> ClippedUsers:
    """Add Σ_u scale_u · g_u to `sums`."""
    losses = users.losses
    with in_full(losses.device.type), torch.no_grad():
        return _clip(sums, users.contributions, losses, clipping).first(users.real)


def add_rest_alone(
    users: ClippedUsers, batch: Any, add: Callable[[Any], ClippedUsers], alone: Alone = select_alone
) -> ClippedUsers:
    """Retry users whose gradient was not finite, each in a batch of one, which `alone` makes.

    Padding for a longer history may have caused it, by 0 · ∞. Whether a user is left out must not depend on others.
    """
    if not users.left_out:
        return users
    norms, scales, left_out = users.norms.clone(), users.scales.clone(), []
    for user in users.left_out:
        own = add(alone(batch, user))
        norms[user], scales[user] = own.norms[0], own.scales[0]
        if own.left_out:
            left_out.append(user)
    return ClippedUsers(users.losses, norms, scales, left_out)


def squared_norms(
    contributions: Mapping[str, list[Contribution]], shapes: Mapping[str, torch.Size], users: int
) -> dict[str, Tensor]:
    """Return every parameter's (B,) squared gradient norms, in float64."""
    return {name: norms.squared_norms(uses, users, shapes[name]) for name, uses in contributions.items()}


def _clip(
    sums: Mapping[str, Tensor | RowSum],
    contributions: Mapping[str, list[Contribution]],
    losses: Tensor,
    clipping: Clipping,
) -> ClippedUsers:
    by_kernels = kernels_fit(losses)
    contributions, sums, views = in_parts(contributions, sums)
    to_build = norms.to_be_built(contributions)
    swept = _swept(to_build, sums, losses.shape[0], by_kernels)
    rest = {name: uses for name, uses in contributions.items() if name != swept}
    rest |= _built_first([name for name in to_build if name != swept], rest, sums, losses.shape[0])
    joint = FusedParameters(rest, sums, losses)
    shapes = {name: out.shape for name, out in joint.sums.items()} | {READS: torch.Size()}
    if swept is None and by_kernels:
        norm, scale, seen = scaled_at_once(joint.measured, shapes, losses, clipping.law)
    else:
        norm, scale = _norms_and_scales(contributions, joint, swept, shapes, losses, clipping)
        seen = torch.stack([(scale == 0).double(), losses.double()])
    lost, host_losses = seen.cpu().unbind()  # the one wait for the device
    left_out = lost.nonzero().flatten().tolist()
    if left_out:
        broken = ~(norm < LARGEST)  # all whose gradient is not finite are among them
        for use in chain.from_iterable(joint.contributions.values()):
            use.forget(broken)
    _add_scaled(joint, scale, by_kernels)
    for own, view in views:
        view += own
    return ClippedUsers(host_losses.to(losses.dtype), norm, scale, left_out)


def _swept(to_build: list[str], sums: Mapping[str, Tensor | RowSum], users: int, by_kernels: bool) -> str | None:
    """Return the parameter whose users' gradients are largest; it is built last, once. None: all are built first."""
    most = max(to_build, key=lambda name: sums[name].shape.numel(), default=None)
    if most is not None and by_kernels and users * sums[most].shape.numel() <= norms.KEPT:
        return None  # to build it first, as the others, is fewer launches
    return most


def _built_first(
    to_build: list[str],
    contributions: Mapping[str, list[Contribution]],
    sums: Mapping[str, Tensor | RowSum],
    users: int,
) -> dict[str, list[Contribution]]:
    """Return the built gradients of parameters whose norms need them."""
    ready: dict[str, list[Contribution]] = {}
    room = norms.KEPT
    for name in to_build:
        shape = sums[name].shape
        ready[name] = norms.built_once(contributions[name], users, shape, room)
        numbers = users * shape.numel()
        room -= numbers if numbers <= room else 0
    return ready


def _add_scaled(joint: FusedParameters, scale: Tensor, by_kernels: bool) -> None:
    """Add every user's scaled gradients to the sums; those that have a kernel, in one launch."""
    scales = {scale.dtype: scale}
    products: dict[str, Product] = {}
    for name, uses in joint.contributions.items():
        out = joint.sums[name]
        if by_kernels and (product := product_of(uses, out)) is not None:
            products[name] = product
            continue
        dtype = out.dtype if isinstance(out, RowSum) else precision(uses)["dtype"]
        if dtype not in scales:
            scales[dtype] = scale.to(dtype)
        weight = scales[dtype]
        for use in uses:
            if isinstance(out, RowSum):
                out.add(use, weight)
            else:
                use.add_to(out, weight)
    done: dict[str, Tensor] = {}
    if products:
        weight = scales.get(torch.float32, scale)
        done = dict(zip(products, sums_at_once(list(products.values()), weight), strict=True))
    joint.add_apart(done)


def _norms_and_scales(
    contributions: Mapping[str, list[Contribution]],
    joint: FusedParameters,
    swept: str | None,
    shapes: Mapping[str, torch.Size],
    losses: Tensor,
    clipping: Clipping,
) -> tuple[Tensor, Tensor]:
    """Return (B,) norms over all parameters, and scales; also add the gradients of `swept` to its sum."""
    users, sums = losses.shape[0], joint.sums
    squared = torch.zeros(users, dtype=torch.float64, device=losses.device)
    squared += _stacked(squared_norms(joint.measured, shapes, users).values(), squared).sum(0)
    every = joint.measured if swept is None else {**joint.measured, swept: contributions[swept]}
    known = [own for uses in every.values() if (own := norms.terms(uses)) is not None]
    summand_norm = torch.linalg.vector_norm(_stacked(known, squared), dim=0)
    if swept is not None:
        whole = sums[swept]
        assert isinstance(whole, Tensor)
        norms.sweep(contributions[swept], whole, squared, summand_norm, clipping.scale)
    norm = squared.sqrt()
    return norm, clipping.scale(norm, summand_norm)


def _stacked(each: Iterable[Tensor], like: Tensor) -> Tensor:
    """Stack n tensors (B,) or () to (n, B), in the dtype of `like` (B,)."""
    whole = like.shape, like.dtype
    rows = [v if (v.shape, v.dtype) == whole else v.to(like.dtype).expand_as(like) for v in each]
    return torch.stack(rows) if rows else like.new_zeros(0, *like.shape)
