"""Sample norms in pieces that fit a cache, without building a table or gradient of every user."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from dprec_kernels.ordering import ascending, ordered
from dprec_kernels.products import multiply_each, product
from dprec_kernels.workspace import workspace

PIECE = 1 << 17  # elements of the users' gradients built at once: 1 MB of float64 stays in the cache
GRAM_PIECE = 1 << 19  # elements of their Gram matrices

GRAM_COST = 2  # a product in the Gram form against one of the direct form; measured on a CPU
FEW = 4  # if at most one read in so many shares its row, only those reads are merged; measured

# If terms cancel, rounding of the Gram form's squares may make a norm too small, which would not bound the gradient.
# So this many times the rounding of (Σ_t ‖left_t‖ ‖right_t‖)² is added.
GRAM_ROUNDINGS = 8


def prefers_gram(length: int, outputs: int, inputs: int) -> bool:
    """Whether two (T x T) products are cheaper than building an (outputs x inputs) gradient."""
    return GRAM_COST * length * (outputs + inputs) < outputs * inputs


def linear(left: Tensor, right: Tensor) -> Tensor:
    """Return (B,) ‖Σ_t left_t rightᵀ_t‖² in float64, for left (B, T, o) and right (B, T, i)."""
    direct = not prefers_gram(left.shape[1], left.shape[2], right.shape[2])
    norms = torch.zeros(left.shape[0], dtype=torch.float64, device=left.device)
    return (_built if direct else _gram)(left, right, norms)


def _built(left: Tensor, right: Tensor, norms: Tensor) -> Tensor:
    shape = left.shape[2], right.shape[2]
    for users in _slices(left.shape[0], shape[0] * shape[1], PIECE):
        a, b = _wide(left[users]), _wide(right[users])
        gradient = multiply_each(a.mT, b, workspace.take("gradient", (len(a), *shape), a))
        norms[users] = _square(gradient.flatten(1))
    return norms


def _gram(left: Tensor, right: Tensor, norms: Tensor) -> Tensor:
    length = left.shape[1]
    for users in _slices(left.shape[0], length * max(length, left.shape[2], right.shape[2]), GRAM_PIECE):
        a, b = _wide(left[users]), _wide(right[users])
        squared = product(a, a.mT).mul_(product(b, b.mT)).sum((1, 2), dtype=torch.float64)
        if length == 1:
            terms = squared
        else:
            lengths = torch.linalg.vector_norm(a, dim=2) * torch.linalg.vector_norm(b, dim=2)
            terms = lengths.sum(1, dtype=torch.float64).square_()
        norms[users] = squared + GRAM_ROUNDINGS * torch.finfo(a.dtype).eps * terms
    return norms.clamp_(min=0.0)


def rows(ids: Tensor, values: Tensor) -> Tensor:
    """Return (B,) ‖Σ_n e_ids ⊗ values_n‖² in float64; repeated ids of a user add up.

    Sorting finds the repeats. If they are few, all other reads are only squared. If all reads of a user share one
    value, as in a bag, it is squared once.
    """
    users, reads = ids.shape
    if ids.numel() == 0 or values.numel() == 0:
        return torch.zeros(users, dtype=torch.float64, device=ids.device)
    if reads > 1 and values.stride(1) == 0:
        return _square(_wide(values[:, 0].reshape(users, -1))).mul_(_squared_counts(ids))
    values = _wide(values.reshape(users * reads, -1))
    if reads == 1:
        return _square(values)
    rows, order = ordered(ids)
    begins = torch.ones_like(rows, dtype=torch.bool)  # (B, N) in sorted order, as is all below
    torch.ne(rows[:, 1:], rows[:, :-1], out=begins[:, 1:])
    alone = begins.clone()
    alone[:, :-1] &= begins[:, 1:]
    source = (order + torch.arange(0, users * reads, reads, device=ids.device).unsqueeze(1)).flatten()
    shared = (~alone).flatten().nonzero().squeeze(1)
    if FEW * shared.shape[0] > users * reads:
        shared = torch.arange(users * reads, device=ids.device)
        norms = torch.zeros(users, dtype=torch.float64, device=ids.device)
    else:
        each = _square(values).index_fill_(0, source[shared], 0.0)
        norms = each.view(users, reads).sum(1)
    if shared.shape[0]:
        begins = begins.flatten()[shared]
        group = begins.cumsum(0) - 1
        owner = torch.div(shared[begins], reads, rounding_mode="floor")
        merged = workspace.take("merged", (len(owner), values.shape[1]), norms).zero_()
        if shared.shape[0] == users * reads:
            merged.index_add_(0, torch.empty_like(group).index_copy_(0, source, group), values.double())
        else:
            merged.index_add_(0, group, values[source[shared]].double())
        norms.index_add_(0, owner, _square(merged))
    return norms


def _squared_counts(ids: Tensor) -> Tensor:
    """Return (B,) the sum of the squares of how often each distinct id occurs.

    >>> _squared_counts(torch.tensor([[3, 5, 3], [1, 1, 1]]))
    tensor([5, 9])
    """
    rows = ascending(ids)
    begins = torch.ones_like(rows, dtype=torch.bool)
    torch.ne(rows[:, 1:], rows[:, :-1], out=begins[:, 1:])
    if bool(begins.all()):
        return torch.full((len(ids),), ids.shape[1], device=ids.device)
    starts = begins.flatten().nonzero().squeeze(1)
    counts = torch.diff(starts, append=starts.new_tensor([ids.numel()]))
    owner = torch.div(starts, ids.shape[1], rounding_mode="floor")
    return torch.zeros(len(ids), dtype=torch.int64, device=ids.device).index_add_(0, owner, counts.square())


def _slices(users: int, each: int, most: int) -> Iterator[slice]:
    step = max(1, most // max(1, each))
    return (slice(start, min(start + step, users)) for start in range(0, users, step))


def _square(gradients: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradients, dim=1, dtype=torch.float64).square()


def _wide(values: Tensor) -> Tensor:
    return values.float() if values.dtype.itemsize < 4 else values
