"""Squared norms of the users' gradients of one parameter, and their weighted sum in the same sweep.

Linear maps and look-ups have norms that need no gradient built (`dprec_kernels.sample_norms`); so do catalogue
tables on short histories. Everything else is built a slice of users at a time, which is exact for any mixture of uses,
cross terms included. The numbers that are measured are the numbers that are scaled and summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Size, Tensor

from dprec.gradients.contributions.base import Contribution, SquaredNorms
from dprec.gradients.contributions.building import BuiltAgain, built, precision, square
from dprec.gradients.contributions.dense import Dense
from dprec.gradients.contributions.look_ups import Rows
from dprec.gradients.contributions.outer import Outer
from dprec.gradients.contributions.over_positions import OverPositions
from dprec_kernels.paths import host_readable
from dprec_kernels.wide_sum import WidePart

KNOWN = (Dense, Outer, OverPositions, Rows)  # know their norms, if the parameter has no other use
KEPT = 1 << 24  # numbers of users' gradients held between norm and sum, of all parameters: 64 MB of float32


def unbuilt(contributions: Sequence[Contribution]) -> SquaredNorms | None:
    """Return a function that computes the norms without building gradients, or None.

    It asks each use in turn whether it knows the norms of all uses together. Gradients that are built know theirs.
    """
    for place, use in enumerate(contributions):
        known = use.squared_norms([*contributions[:place], *contributions[place + 1 :]])
        if known is not None:
            return known
    return None


def to_be_built(contributions: Mapping[str, Sequence[Contribution]]) -> list[str]:
    """Return the parameters whose norms need the users' gradients built."""
    return [
        name
        for name, (first, *rest) in contributions.items()
        if (rest or type(first) not in KNOWN) and unbuilt([first, *rest]) is None
    ]


def built_once(uses: list[Contribution], users: int, shape: Size, room: int) -> list[Contribution]:
    """Return the users' gradients so that norm and sum use the same numbers; keep at most `room` numbers."""
    if users * shape.numel() > room:
        return [BuiltAgain(uses, shape)]
    whole = torch.empty(users, *shape, **precision(uses))
    for chosen, gradient in built(uses, shape, users):
        whole[chosen] = gradient
    return [Dense(whole)]


def squared_norms(contributions: Sequence[Contribution], users: int, shape: Size) -> Tensor:
    """Return (B,) squared norms in float64."""
    known = unbuilt(contributions)
    if known is not None:
        return known()
    return torch.cat([square(gradient) for _, gradient in built(contributions, shape, users)])


def terms(contributions: Sequence[Contribution]) -> Tensor | None:
    """Return (B,) the total length of a parameter's terms; None if norm and sum use the same numbers."""
    each = [own for use in contributions if (own := use.terms()) is not None]
    if len(each) > 1:
        return torch.stack(each).sum(0, dtype=torch.float64)
    return each[0] if each else None


def sweep(
    contributions: Sequence[Contribution],
    out: Tensor,
    squared: Tensor,
    summand_norm: Tensor,
    scale: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Add this parameter to the squared norms, then scale and add its gradients, one slice at a time.

    `squared` (B,) has the squared norms of all other parameters. `scale(norm, summand_norm)` returns the factors.

    Each slice is built once, and used for norm and sum while it is in the cache.
    """
    part = WidePart(out, precision(contributions)["dtype"])
    for chosen, gradient in built(contributions, out.shape, squared.shape[0]):
        own, whole = square(gradient), squared[chosen]
        whole += own
        weight = scale(whole.sqrt(), summand_norm[chosen])
        if not (host_readable(own) and math.isfinite(own.sum())):
            gradient.masked_fill_((weight == 0).view(-1, *[1] * out.dim()), 0.0)
        part.add(gradient, weight)
    part.flush()
