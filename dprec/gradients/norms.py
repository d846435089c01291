"""Squared norms of the users' gradients of one parameter, and their weighted sum in the same sweep.

Linear maps and look-ups have norms that need no gradient built (`dprec_kernels.sample_norms`); so do catalogue
tables on short histories. What rounding can put between such a norm and what is summed has a bound, `rounding`.
Everything else is built a slice of users at a time, which is exact for any mixture of uses, cross terms included: the
same numbers are measured, scaled and summed, so that nothing is between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Size, Tensor

from dprec.gradients.catalogue_rows import CatalogueRows
from dprec.gradients.contribution import Contribution, Dense, Outer, Pulled, Rows, SharedRows, Users
from dprec.gradients.wide_sum import USERS, WidePart, add_weighted
from dprec_kernels import sample_norms
from dprec_kernels.catalogue_softmax.pieces import Group
from dprec_kernels.ordering import distinct
from dprec_kernels.workspace import workspace

KEPT = 1 << 24  # numbers of users' gradients held between norm and sum, of all parameters: 64 MB of float32
SLICE = 1 << 18  # elements of the users' gradients built at once: 1 MB of float32 stays in the cache


def can_skip_building(contributions: Sequence[Contribution]) -> bool:
    """Whether the norms have a form that is cheaper than building every user's gradient, or they are built already."""
    kinds = {type(contribution) for contribution in contributions}
    by_rows = SharedRows in kinds and kinds <= {Rows, SharedRows}
    return by_rows or kinds in ({Rows}, {Outer}) or (kinds == {Dense} and len(contributions) == 1)


def settled(name: str, contributions: list[Contribution], users: int) -> list[Contribution]:
    """Return the users' gradients built, where they are no larger than what they are built from.

    That is so for linear maps on long histories: norm and sum then read them instead of multiplying twice.
    """
    if not all(isinstance(c, Outer) for c in contributions):
        return contributions
    left, right = _linear(contributions)
    if sample_norms.prefers_gram(left.shape[1], left.shape[2], right.shape[2]):
        return contributions
    gradient = workspace.take(f"gradients of {name}", (users, left.shape[2], right.shape[2]), left).zero_()
    for contribution in contributions:
        contribution.materialise(gradient, slice(0, users))
    terms = [c.terms() for c in contributions if isinstance(c, Outer)]
    return [Dense(gradient, torch.stack(terms).sum(0))]


@dataclass
class BuiltAgain:
    """Users' gradients that are too many to be held: they are built for the norm, and in the same way for the sum."""

    uses: list[Contribution]
    shape: Size

    def materialise(self, out: Tensor, users: Users) -> None:
        for use in self.uses:
            use.materialise(out, users)

    def add_weighted(self, out: Tensor, weight: Tensor) -> None:
        for chosen, gradient in built(self.uses, self.shape, range(len(weight))):
            flat = gradient.view(len(gradient), -1)
            out.view(-1).addmv_(flat.T, weight[chosen].to(flat.dtype))

    def forget(self, users: Tensor) -> None:
        for use in self.uses:
            use.forget(users)

    def terms(self) -> Tensor:
        return torch.stack([use.terms().double() for use in self.uses]).sum(0)


def built_once(uses: list[Contribution], users: int, shape: Size, room: int) -> list[Contribution]:
    """Return the users' gradients such that norm and sum are of the same numbers; up to so many numbers are held."""
    if users * shape.numel() > room:
        return [BuiltAgain(uses, shape)]
    whole = torch.empty(users, *shape, **form(uses))
    for chosen, gradient in built(uses, shape, range(users)):
        whole[chosen] = gradient
    return [Dense(whole)]


def squared_norms(contributions: Sequence[Contribution], users: int, shape: Size) -> Tensor:
    """Return (B,) squared norms in float64."""
    first = contributions[0]
    if can_skip_building(contributions):
        if isinstance(first, Dense):
            return _square(first.values)
        if any(isinstance(c, SharedRows) for c in contributions):
            return _squared_norms_of_rows(contributions, users)
        if isinstance(first, Rows):
            return sample_norms.rows(*_joined(contributions))
        return sample_norms.linear(*_linear(contributions))
    return torch.cat([_square(gradient) for _, gradient in built(contributions, shape, range(users))])


def _squared_norms_of_rows(contributions: Sequence[Contribution], users: int) -> Tensor:
    """Return the squared norms where all users read some rows alike, and others each for themselves.

    Gradients are built of the shared rows alone, so that nothing grows with the table.
    """
    shared = [c for c in contributions if isinstance(c, SharedRows)]
    read = distinct(torch.cat([c.ids for c in shared]))  # (K,) ascending
    moved: list[Contribution] = [SharedRows(torch.searchsorted(read, c.ids), c.left, c.right) for c in shared]
    elsewhere: Tensor | float = 0.0
    if len(shared) < len(contributions):
        ids, values = _joined(contributions)
        if not len(read):  # a strategy has chosen none of the shared rows
            return sample_norms.rows(ids, values)
        place = torch.searchsorted(read, ids).clamp(max=len(read) - 1)  # (B, N)
        met = (read[place] == ids).unsqueeze(2)
        moved.append(Rows(place, values.masked_fill(~met, 0.0)))
        elsewhere = sample_norms.rows(ids, values.masked_fill(met, 0.0))
    small = Size((len(read), shared[0].right.shape[2]))
    return torch.cat([_square(gradient) for _, gradient in built(moved, small, range(users))]) + elsewhere


def rounding(contributions: Sequence[Contribution], squared: Tensor | None = None) -> Tensor | float:
    """Return (B,) how far a user's share, as it is summed, may be from the gradient whose norm was taken.

    Where terms cancel, the norm can be far below the rounding of the terms. Clipping to the norm plus this
    keeps the bound for such a user too; for others it changes the eighth digit. It must be a function of the user's own
    terms, not of the form that they have in this batch, which the others decide: their bags may all be full, their
    longest history short. The term of a single read is the norm itself, taken from `squared` (B,) where it is given.
    """
    first = contributions[0]
    if squared is not None and isinstance(first, Rows) and len(contributions) == 1 and first.ids.shape[1] == 1:
        return 4 * torch.finfo(first.values.dtype).eps * squared.sqrt()
    if len(contributions) == 1 and isinstance(first, Dense) and first.summed is None:
        return 0.0
    return sum(4 * _eps(term) * term.double() for term in (c.terms() for c in contributions))


def _eps(term: Tensor) -> float:
    return torch.finfo(term.dtype).eps


def built(
    contributions: Sequence[Contribution], shape: Size, users: Sequence[int] | range
) -> Iterator[tuple[Users, Tensor]]:
    """Yield a slice of users and their gradients (b, *shape), which the next slice overwrites, until all had a turn."""
    step = min(USERS, max(1, SLICE // max(1, shape.numel())))
    like = torch.empty(0, **form(contributions))
    for start in range(0, len(users), step):
        part = users[start : start + step]
        chosen: Users = slice(part.start, part.stop) if isinstance(part, range) else torch.tensor(part).to(like.device)
        gradient = workspace.take("gradients", (len(part), *shape), like).zero_()
        for contribution in contributions:
            contribution.materialise(gradient, chosen)
        yield chosen, gradient


def sweep(
    contributions: Sequence[Contribution],
    out: Tensor,
    squared: Tensor,
    noise: Tensor,
    scale: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """Complete the users' squared norms (B,), which hold all other parameters, and add the scaled gradients to `out`.

    `scale` is asked for the factors of norms, given what rounding may have put into them, `noise` (B,).

    Users whose positions' overlaps are known need no gradient built for their norm. The others' gradients are
    built once: norm, scale and sum while they are in the cache.
    """
    left: Sequence[int] | range = range(len(squared))
    known = _known_overlaps(contributions)
    if known:
        catalogue, rows = known
        left = _sum_by_overlaps(catalogue, rows, out, squared, noise, scale)
    part, together = WidePart(out, form(contributions)["dtype"]), 0
    for chosen, gradient in built(contributions, out.shape, left):
        together += len(gradient)
        if together > USERS:
            part.flush()
            together = len(gradient)
        own = _square(gradient)
        squared[chosen] += own
        weight = scale(squared[chosen].sqrt(), noise[chosen])
        if not bool(torch.isfinite(own).all()):
            gradient.masked_fill_((weight == 0).view(-1, *[1] * out.dim()), 0.0)
        flat = gradient.view(len(gradient), -1)
        part.sum.view(-1).addmv_(flat.T, weight.to(flat.dtype))
    part.flush()


def _known_overlaps(contributions: Sequence[Contribution]) -> tuple[CatalogueRows, list[Rows]] | None:
    catalogue = [c for c in contributions if isinstance(c, CatalogueRows)]
    rows = [c for c in contributions if isinstance(c, Rows)]
    if len(catalogue) != 1 or len(rows) + 1 != len(contributions) or not _with_products(catalogue[0]):
        return None
    return catalogue[0], rows


def _with_products(catalogue: CatalogueRows) -> list[Group]:
    return [group for group in catalogue.groups if group.products is not None]


def _sum_by_overlaps(
    catalogue: CatalogueRows,
    rows: list[Rows],
    out: Tensor,
    squared: Tensor,
    noise: Tensor,
    scale: Callable[[Tensor, Tensor], Tensor],
) -> list[int]:
    """Do what `sweep` does for the users with overlaps, and return the users without."""
    ids, values = _joined(rows) if rows else (catalogue.target[:, :0], catalogue.hidden[:, :0])
    slack = rounding([catalogue, *rows])
    assert isinstance(slack, Tensor)
    done = torch.zeros(len(squared), dtype=torch.bool, device=squared.device)
    for group in _with_products(catalogue):
        own = catalogue.norms_with(group, ids, values).sqrt() + slack[group.users]
        squared[group.users] += own.square()
        done[group.users] = True
    weight = torch.where(done, scale(squared.sqrt(), noise), 0.0)
    broken = done & (weight == 0)
    both: list[Contribution] = [catalogue, *rows]
    for contribution in both:
        if bool(broken.any()):
            contribution.forget(broken)
        add_weighted(out, contribution, weight, catalogue.hidden.dtype)
    return (~done).nonzero().squeeze(1).tolist()


def _square(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1, dtype=torch.float64).square()


def _linear(contributions: Sequence[Contribution]) -> tuple[Tensor, Tensor]:
    outers = [c for c in contributions if isinstance(c, Outer)]
    if len(outers) == 1:
        return outers[0].left, outers[0].right
    return torch.cat([c.left for c in outers], 1), torch.cat([c.right for c in outers], 1)


def _joined(contributions: Sequence[Contribution]) -> tuple[Tensor, Tensor]:
    rows = [c for c in contributions if isinstance(c, Rows)]
    if len(rows) == 1:
        return rows[0].ids, rows[0].values.reshape(*rows[0].ids.shape, -1)
    ids = torch.cat([c.ids for c in rows], 1)  # (B, N)
    return ids, torch.cat([c.values.reshape(*c.ids.shape, -1) for c in rows], 1)  # (B, N, d)


def form(contributions: Sequence[Contribution]) -> dict[str, Any]:
    """Return the precision in which users' gradients are built, float32 at least, and where."""
    held = [value for c in contributions for value in _numbers(c)]
    dtypes = [value.dtype for value in held]
    return {"dtype": functools.reduce(torch.promote_types, dtypes, torch.float32), "device": held[0].device}


def _numbers(contribution: Contribution) -> list[Tensor]:
    """Return tensors of the kind that a contribution adds up: where it is carried back, those of its parameter."""
    if isinstance(contribution, BuiltAgain):
        return [value for use in contribution.uses for value in _numbers(use)]
    if isinstance(contribution, Pulled):
        return [contribution.parameter, *_numbers(contribution.inner)]
    return [v for v in vars(contribution).values() if isinstance(v, Tensor) and v.is_floating_point()]
