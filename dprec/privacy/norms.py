"""Squared norms of the users' gradients of one parameter, and their weighted sum in the same sweep.

Three exact ways, chosen by cost. *Gram*: ‖Σ_t l_t rᵀ_t‖² = ⟨LLᵀ, RRᵀ⟩, for linear maps on short histories.
*Sparse*: repeated rows are merged per user, for tables that are only looked up. *Sweep*: a slice of users is
built at a time; it is exact for any mixture, cross terms included, and the slice can be scaled and summed
before it leaves the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from dprec_kernels.workspace import workspace
from torch import Size, Tensor

from dprec.privacy.contribution import CatalogueRows, Contribution, Dense, Outer, Rows, Users

SLICE = 1 << 18  # elements of the users' gradients built at once: 1 MB of float32 stays in the cache

GRAM_COST = 2  # a product in the Gram form against one of the sweep; measured


def can_skip_building(contributions: Sequence[Contribution]) -> bool:
    """Whether the norms have a form that is cheaper than building every user's gradient."""
    kinds = {type(contribution) for contribution in contributions}
    if kinds == {Rows}:
        return True
    if kinds != {Outer}:
        return False
    length, out, inputs = _outer_shape(contributions)
    return GRAM_COST * length * (out + inputs) < out * inputs


def settled(name: str, contributions: list[Contribution], users: int) -> list[Contribution]:
    """Return the users' gradients built, where they are no larger than what they are built from.

    That is so for linear maps on long histories: norm and sum then read them instead of multiplying twice.
    """
    if not all(isinstance(c, Outer) for c in contributions):
        return contributions
    length, out, inputs = _outer_shape(contributions)
    if length * (out + inputs) < out * inputs:
        return contributions
    gradient = workspace.take(f"gradients of {name}", (users, out, inputs), _some_tensor(contributions[0])).zero_()
    for contribution in contributions:
        contribution.materialise(gradient, slice(0, users))
    return [Dense(gradient)]


def squared_norms(contributions: Sequence[Contribution], users: int, shape: Size) -> Tensor:
    """Return (B,) squared norms in float64."""
    if len(contributions) == 1 and isinstance(contributions[0], Dense):
        return _square(contributions[0].values)
    if can_skip_building(contributions):
        if isinstance(contributions[0], Rows):
            return _merged_rows(contributions, users)
        return _gram(contributions)
    return torch.cat([_square(gradient) for _, gradient in built(contributions, shape, range(users))])


def rounding(contributions: Sequence[Contribution]) -> Tensor | float:
    """Return (B,) how far a user's share, as it is summed, may be from the gradient whose norm was taken.

    Where terms cancel, the norm can be far below the rounding of the terms. Clipping to the norm plus this
    keeps the bound for such a user too; for others it changes the eighth digit.
    """
    terms = [c.terms() for c in contributions if isinstance(c, (Outer, Rows, CatalogueRows))]
    return sum(4 * torch.finfo(term.dtype).eps * term.double() for term in terms) if terms else 0.0


def built(
    contributions: Sequence[Contribution], shape: Size, users: Sequence[int] | range
) -> Iterator[tuple[Users, Tensor]]:
    """Yield a slice of users and their gradients (b, *shape), which the next slice overwrites, until all had a turn."""
    step = max(1, SLICE // max(1, shape.numel()))
    like = _some_tensor(contributions[0])
    for start in range(0, len(users), step):
        part = users[start : start + step]
        chosen: Users = slice(part.start, part.stop) if isinstance(part, range) else torch.tensor(part).to(like.device)
        gradient = workspace.take("gradients", (len(part), *shape), like).zero_()
        for contribution in contributions:
            contribution.materialise(gradient, chosen)
        yield chosen, gradient


def sweep(
    contributions: Sequence[Contribution], out: Tensor, squared: Tensor, scale: Callable[[Tensor], Tensor]
) -> None:
    """Complete the users' squared norms (B,), which hold all other parameters, and add the scaled gradients to `out`.

    Users whose positions' overlaps are known need no gradient built for their norm. The others' gradients are
    built once: norm, scale and sum while they are in the cache.
    """
    left: Sequence[int] | range = range(len(squared))
    known = _known_overlaps(contributions)
    if known:
        catalogue, rows = known
        left = _sum_by_overlaps(catalogue, rows, out, squared, scale)
    for chosen, gradient in built(contributions, out.shape, left):
        own = _square(gradient)
        squared[chosen] += own
        weight = scale(squared[chosen].sqrt())
        if not bool(torch.isfinite(own).all()):
            gradient.masked_fill_((weight == 0).view(-1, *[1] * out.dim()), 0.0)
        flat = gradient.view(len(gradient), -1)
        out.view(-1).addmv_(flat.T, weight.to(flat.dtype))


def _known_overlaps(contributions: Sequence[Contribution]) -> tuple[CatalogueRows, list[Rows]] | None:
    catalogue = [c for c in contributions if isinstance(c, CatalogueRows)]
    rows = [c for c in contributions if isinstance(c, Rows)]
    if len(catalogue) != 1 or len(rows) + 1 != len(contributions) or not catalogue[0].overlaps:
        return None
    return catalogue[0], rows


def _sum_by_overlaps(
    catalogue: CatalogueRows, rows: list[Rows], out: Tensor, squared: Tensor, scale: Callable[[Tensor], Tensor]
) -> list[int]:
    """Do what `sweep` does for the users with overlaps, and return the users without."""
    ids, values = _joined(rows) if rows else (catalogue.target[:, :0], catalogue.hidden[:, :0])
    slack = rounding([catalogue, *rows])
    assert isinstance(slack, Tensor)
    done = torch.zeros(len(squared), dtype=torch.bool, device=squared.device)
    for overlap in catalogue.overlaps:
        own = catalogue.norms_with(overlap, ids, values).sqrt() + slack[overlap.users]
        squared[overlap.users] += own.square()
        done[overlap.users] = True
    weight = torch.where(done, scale(squared.sqrt()), 0.0).to(out.dtype)
    broken = done & (weight == 0)
    both: list[Contribution] = [catalogue, *rows]
    for contribution in both:
        if bool(broken.any()):
            contribution.forget(broken)
        contribution.add_weighted(out, weight)
    return (~done).nonzero().squeeze(1).tolist()


def _square(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1, dtype=torch.float64).square()


def _outer_shape(contributions: Sequence[Contribution]) -> tuple[int, int, int]:
    outers = [c for c in contributions if isinstance(c, Outer)]
    return sum(c.left.shape[1] for c in outers), outers[0].left.shape[2], outers[0].right.shape[2]


def _gram(contributions: Sequence[Contribution]) -> Tensor:
    outers = [c for c in contributions if isinstance(c, Outer)]
    left = torch.cat([c.left for c in outers], 1)
    right = torch.cat([c.right for c in outers], 1)
    exact = ((left @ left.mT) * (right @ right.mT)).sum((1, 2), dtype=torch.float64)
    # The sum can be far smaller than its terms, and a norm that is too small would not bound: add what rounding hides.
    terms = torch.stack([c.terms() for c in outers]).sum(0).double()
    return (exact + 4 * torch.finfo(left.dtype).eps * terms.square()).clamp_(min=0.0)


def _joined(rows: Sequence[Rows]) -> tuple[Tensor, Tensor]:
    ids = torch.cat([c.ids for c in rows], 1)  # (B, N)
    return ids, torch.cat([c.values.reshape(*c.ids.shape, -1) for c in rows], 1)  # (B, N, d)


def _merged_rows(contributions: Sequence[Contribution], users: int) -> Tensor:
    ids, values = _joined([c for c in contributions if isinstance(c, Rows)])
    norms = torch.zeros(users, dtype=torch.float64, device=ids.device)
    if ids.numel() == 0:
        return norms
    owner = torch.arange(users, device=ids.device).unsqueeze(1).expand_as(ids)
    key = owner * (int(ids.max()) + 1) + ids
    distinct, place = key.flatten().unique(return_inverse=True)
    merged = values.new_zeros(distinct.shape[0], values.shape[2]).index_add_(0, place, values.flatten(0, 1))
    owner_of = torch.empty_like(distinct).index_put_((place,), owner.flatten())
    return norms.index_add_(0, owner_of, _square(merged))


def _some_tensor(contribution: Contribution) -> Tensor:
    return next(v for v in vars(contribution).values() if isinstance(v, Tensor) and v.is_floating_point())
