"""Squared norms of the users' gradients of one parameter, and their weighted sum in the same sweep.

Three exact ways, chosen by cost. *Gram*: ‖Σ_t l_t rᵀ_t‖² = ⟨LLᵀ, RRᵀ⟩, for linear maps on short histories.
*Sparse*: repeated rows are merged per user, for tables that are only looked up. *Sweep*: a slice of users is
built at a time; it is exact for any mixture, cross terms included, and the slice can be scaled and summed
before it leaves the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Size, Tensor

from dprec.privacy.contribution import CatalogueRows, Contribution, Outer, Rows

SLICE = 1 << 18  # elements of the users' gradients built at once: 1 MB of float32 stays in the cache

GRAM_COST = 8  # a product in the Gram form, in float64 and out of cache, against one of the sweep; measured


def can_skip_building(contributions: Sequence[Contribution]) -> bool:
    """Whether the norms have a form that is cheaper than building every user's gradient."""
    kinds = {type(contribution) for contribution in contributions}
    if kinds == {Rows}:
        return True
    if kinds != {Outer}:
        return False
    length, out, inputs = _outer_shape(contributions)
    return GRAM_COST * length * (out + inputs) < out * inputs


def squared_norms(contributions: Sequence[Contribution], users: int, shape: Size) -> Tensor:
    """Return (B,) squared norms in float64."""
    if can_skip_building(contributions):
        if isinstance(contributions[0], Rows):
            return _merged_rows(contributions, users)
        return _gram(contributions)
    parts = [_square(gradient) for _, gradient in built(contributions, users, shape)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def rounding(contributions: Sequence[Contribution]) -> Tensor | float:
    """Return (B,) how far a user's share, as it is summed, may be from the gradient whose norm was taken.

    Where terms cancel, the norm can be far below the rounding of the terms. Clipping to the norm plus this
    keeps the bound for such a user too; for others it changes the eighth digit.
    """
    terms = [c.terms() for c in contributions if isinstance(c, (Outer, Rows, CatalogueRows))]
    return sum(4 * torch.finfo(term.dtype).eps * term.double() for term in terms) if terms else 0.0


def built(contributions: Sequence[Contribution], users: int, shape: Size) -> Iterator[tuple[slice, Tensor]]:
    """Yield every slice of users with its gradients (b, *shape). The tensor is overwritten by the next slice."""
    step = max(1, SLICE // max(1, shape.numel()))
    like = _some_tensor(contributions[0])
    space = like.new_empty((min(step, users), *shape))
    for start in range(0, users, step):
        chosen = slice(start, min(start + step, users))
        gradient = space[: chosen.stop - start].zero_()
        for contribution in contributions:
            contribution.materialise(gradient, chosen)
        yield chosen, gradient


def sweep(
    contributions: Sequence[Contribution], users: int, out: Tensor, weigh: Callable[[slice, Tensor], Tensor]
) -> None:
    """Build each slice once: hand its squared norms to `weigh`, add the slice times the returned weights."""
    for chosen, gradient in built(contributions, users, out.shape):
        norms = _square(gradient)
        weight = weigh(chosen, norms)
        if not bool(torch.isfinite(norms).all()):
            gradient.masked_fill_((weight == 0).view(-1, *[1] * out.dim()), 0.0)
        flat = gradient.view(len(gradient), -1)
        out.view(-1).addmv_(flat.T, weight.to(flat.dtype))


def _square(gradient: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradient.reshape(len(gradient), -1), dim=1, dtype=torch.float64).square()


def _outer_shape(contributions: Sequence[Contribution]) -> tuple[int, int, int]:
    outers = [c for c in contributions if isinstance(c, Outer)]
    return sum(c.left.shape[1] for c in outers), outers[0].left.shape[2], outers[0].right.shape[2]


def _gram(contributions: Sequence[Contribution]) -> Tensor:
    # In float64: the sum can be far smaller than its terms, and a norm that is too small would not bound.
    left = torch.cat([c.left for c in contributions if isinstance(c, Outer)], 1).double()
    right = torch.cat([c.right for c in contributions if isinstance(c, Outer)], 1).double()
    return ((left @ left.mT) * (right @ right.mT)).sum((1, 2)).clamp_(min=0.0)


def _merged_rows(contributions: Sequence[Contribution], users: int) -> Tensor:
    rows = [c for c in contributions if isinstance(c, Rows)]
    ids = torch.cat([c.ids for c in rows], 1)  # (B, N)
    values = torch.cat([c.values.flatten(2) if c.values.dim() > 2 else c.values[..., None] for c in rows], 1)
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
