"""Squared norms of the users' gradients of one parameter, and their weighted sum in the same sweep.

Linear maps and look-ups have norms that need no gradient built (`dprec_kernels.sample_norms`); so do catalogue
tables on short histories. What rounding can put between such a norm and what is summed has a bound, `rounding`.
Everything else is built a slice of users at a time, which is exact for any mixture of uses, cross terms included: the
same numbers are measured, scaled and summed, so that nothing is between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Size, Tensor

from dprec.gradients.contributions.base import Contribution, SquaredNorms
from dprec.gradients.contributions.building import BuiltAgain, built, precision, square
from dprec.gradients.contributions.dense import Dense
from dprec_kernels.paths import answers_at_once
from dprec_kernels.wide_sum import WidePart

KEPT = 1 << 24  # numbers of users' gradients held between norm and sum, of all parameters: 64 MB of float32


def can_skip_building(contributions: Sequence[Contribution]) -> bool:
    """Whether the norms have a form that is cheaper than building every user's gradient, or they are built already."""
    return _unbuilt(contributions) is not None


def _unbuilt(contributions: Sequence[Contribution]) -> SquaredNorms | None:
    """Ask each use in turn whether it knows the norms of all of them together."""
    for use, others in _with_others(contributions):
        known = use.squared_norms(others)
        if known is not None:
            return known
    return None


def _with_others(contributions: Sequence[Contribution]) -> Iterator[tuple[Contribution, Sequence[Contribution]]]:
    for place, use in enumerate(contributions):
        yield use, [*contributions[:place], *contributions[place + 1 :]]


def settled(name: str, contributions: list[Contribution]) -> list[Contribution]:
    """Return the contributions in a form that is cheaper from here on, now that the last has arrived."""
    together = contributions[0].settled(contributions[1:], name)
    return contributions if together is None else [together]


def built_once(uses: list[Contribution], users: int, shape: Size, room: int) -> list[Contribution]:
    """Return the users' gradients such that norm and sum are of the same numbers; up to so many numbers are held."""
    if users * shape.numel() > room:
        return [BuiltAgain(uses, shape)]
    whole = torch.empty(users, *shape, **precision(uses))
    for chosen, gradient in built(uses, shape, range(users)):
        whole[chosen] = gradient
    return [Dense(whole)]


def squared_norms(contributions: Sequence[Contribution], users: int, shape: Size) -> Tensor:
    """Return (B,) squared norms in float64."""
    known = _unbuilt(contributions)
    if known is not None:
        return known()
    return torch.cat([square(gradient) for _, gradient in built(contributions, shape, range(users))])


def rounding(contributions: Sequence[Contribution], squared: Tensor | None = None) -> Tensor | float:
    """Return (B,) how far a user's share, as it is summed, may be from the gradient whose norm was taken.

    Where terms cancel, the norm can be far below the rounding of the terms. Clipping to the norm plus this
    keeps the bound for such a user too; for others it changes the eighth digit. It must be a function of the user's own
    terms, not of the form that they have in this batch, which the others decide: their bags may all be full, their
    longest history short. `squared` (B,) are the norms, where they are known.
    """
    if len(contributions) == 1:
        return contributions[0].rounding(squared)
    return sum(use.rounding_of_terms() for use in contributions)


def sweep(
    contributions: Sequence[Contribution],
    out: Tensor,
    squared: Tensor,
    rounded: Tensor,
    scale: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Complete the users' squared norms (B,), which hold all other parameters, and add the scaled gradients to `out`.

    `scale` is asked for the factors of norms, given what rounding may have put into them, `rounded` (B,).

    Users whose norms a contribution knows need no gradient built. The others' gradients are
    built once: norm, scale and sum while they are in the cache.
    """
    left: Sequence[int] | range = range(len(squared))
    dtype = precision(contributions)["dtype"]
    for use, others in _with_others(contributions):
        known = use.some_squared_norms(others)
        if known:
            left = _sum_known([use, *others], known, out, squared, rounded, scale, dtype)
            break
    if not len(left):  # a pass over the parameter costs as much as some of its users
        return
    part = WidePart(out, dtype)
    for chosen, gradient in built(contributions, out.shape, left):
        own = square(gradient)
        squared[chosen] += own
        weight = scale(squared[chosen].sqrt(), rounded[chosen])
        if not (answers_at_once(own) and bool(torch.isfinite(own).all())):
            gradient.masked_fill_((weight == 0).view(-1, *[1] * out.dim()), 0.0)
        part.add(gradient, weight)
    part.flush()


def _sum_known(
    contributions: Sequence[Contribution],
    known: Sequence[tuple[Tensor, Tensor]],
    out: Tensor,
    squared: Tensor,
    rounded: Tensor,
    scale: Callable[[Tensor, Tensor], Tensor],
    dtype: torch.dtype,
) -> list[int]:
    """Do what `sweep` does for the users whose squared norms are known, and return the others."""
    slack = torch.as_tensor(rounding(contributions), device=squared.device).expand_as(squared)
    done = torch.zeros(len(squared), dtype=torch.bool, device=squared.device)
    for users, norms in known:
        squared[users] += (norms.sqrt() + slack[users]).square()
        done[users] = True
    weight = torch.where(done, scale(squared.sqrt(), rounded), 0.0)
    # Of the others, too, who are still to be built: 0 · ∞ would not be 0. No rounding is finite where a term is not.
    broken = (done & (weight == 0)) | ~torch.isfinite(rounded)
    for contribution in contributions:
        if bool(broken.any()):
            contribution.forget(broken)
        contribution.add_to(out, weight, dtype)
    return (~done).nonzero().squeeze(1).tolist()
