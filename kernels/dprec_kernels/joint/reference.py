"""The reference: builds every user's gradient, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FLAT, AUTO_V, AUTO_S = 0, 1, 2
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True)
class Products:
    """A linear map: each user's gradient is Σ_t left_t rightᵀ_t."""

    left: Tensor  # (B, T, o) float32
    right: Tensor  # (B, T, i) float32


@dataclass(frozen=True)
class Vectors:
    """Rows that are read, or built gradients, one for each user."""

    values: Tensor  # (B, N, d) float32


@dataclass(frozen=True)
class Positions:
    """A bias or a normalisation: each user's gradient is Σ_t values_t, times factors_t number by number if given."""

    values: Tensor  # (B, T, d) float32
    factors: Tensor | None = None  # (B, T, d) float32


@dataclass(frozen=True)
class Softmaxes:
    """A catalogue softmax: a term is a position's vector times its probabilities, which are rounded like the scores."""

    hidden: Tensor  # (B, T, d) float32
    weight: Tensor  # (B, T) float32, the gradient at each loss
    log_total: Tensor  # (B, T) float32
    likeliest: Tensor  # (B, T) float32, the largest probability
    target: Tensor  # (B, T) int64
    padding: int  # of the target
    items: int


@dataclass(frozen=True)
class Measure:
    """The norms of one parameter to compute.

    `squared` are its users' squared norms (B,) in float64, if they are known. If not, `terms` has one term: a linear
    map, a sum over positions or a vector of each user. `rounds` tells whether the terms' lengths bound the rounding
    error; `off` (B,) is added to that bound.
    """

    terms: Sequence[Products | Vectors | Positions | Softmaxes] = ()
    squared: Tensor | None = None
    rounds: bool = True
    off: Tensor | None = None

    def __post_init__(self) -> None:
        if self.squared is None and len(self.terms) != 1:
            raise ValueError(f"a norm is taken of one term, not of {len(self.terms)}: give the squared norms")


@dataclass(frozen=True)
class Law:
    """The parameters by which a norm becomes a factor (`dprec.gradients.clipping`)."""

    mode: int
    bound: float
    smallest: float  # norm of AUTO_V
    stability: float  # of AUTO_S
    roundings: float  # rounding is at most one in so many parts of the bound
    largest: float  # larger norms get the factor 0


def measured(measures: Sequence[Measure], like: Tensor, part: float) -> tuple[Tensor, Tensor]:
    """Return (n, B) squared norms, and (n, B) `part` of the lengths of all terms."""
    squared, off = torch.zeros(2, len(measures), len(like), dtype=torch.float64, device=like.device)
    for n, measure in enumerate(measures):
        squared[n] = _squared(measure.terms[0]) if measure.squared is None else measure.squared
        for term in measure.terms if measure.rounds else ():
            off[n] += part * _lengths(term, part)
        if measure.off is not None:
            off[n] += measure.off
    return squared, off


def scaled(squared: Tensor, off: Tensor, raised: int, losses: Tensor, law: Law) -> tuple[Tensor, Tensor, Tensor]:
    """Return norms, scales, and (2, B) whether a scale is 0, and the losses."""
    norm = torch.where(off > 0, (squared.sqrt() + off).square(), squared)[:raised].sum(0).sqrt()
    rounded = off.square().sum(0).sqrt()
    if law.mode == FLAT:
        factor = (law.bound / norm.clamp(min=TINY)).clamp(max=1.0)
    elif law.mode == AUTO_V:
        factor = law.bound / norm.clamp(min=law.smallest)
    else:
        factor = law.bound / (norm + law.stability)
    factor = torch.minimum(factor, law.bound / (law.roundings * rounded).clamp(min=TINY))
    scale = torch.where((norm < law.largest) & (rounded < law.largest), factor, 0.0)
    return norm, scale, torch.stack([(scale == 0).double(), losses.double()])


def sums(terms: Sequence[Products | Vectors | Positions], weight: Tensor) -> list[Tensor]:
    """Return the scaled sum of each term."""
    each = weight.double().view(-1, 1, 1)
    return [
        torch.einsum("uto,uti->oi", t.left.double() * each, t.right.double())
        if isinstance(t, Products)
        else (_values(t) * each).sum((0, 1)).unsqueeze(0)
        for t in terms
    ]


def _values(term: Vectors | Positions) -> Tensor:
    if isinstance(term, Positions) and term.factors is not None:
        return (term.values * term.factors).double()  # rounded once, for norm and sum
    return term.values.double()


def _squared(term: Products | Vectors | Positions | Softmaxes) -> Tensor:
    if isinstance(term, Products):
        return (term.left.double().mT @ term.right.double()).square().sum((1, 2))
    assert not isinstance(term, Softmaxes)
    values = _values(term)
    return (values.sum(1, keepdim=True) if isinstance(term, Positions) else values).square().sum((1, 2))


def _lengths(term: Products | Vectors | Positions | Softmaxes, part: float) -> Tensor:
    """Return (B,) the sum of the terms' norms, increased by the additional rounding of probabilities.

    A probability is exp(score - log total): its relative error is the absolute error of numbers as large as these two,
    and grows exponentially for large ones. A position's probabilities have a norm of at most √(the largest).
    """
    if isinstance(term, Products):
        return (term.left.double().norm(dim=2) * term.right.double().norm(dim=2)).sum(1)
    if not isinstance(term, Softmaxes):
        return _values(term).norm(dim=2).sum(1)
    doubt = torch.expm1(part * term.log_total.double().abs()) * term.likeliest.double().sqrt()
    each = term.weight.double().abs() * term.hidden.double().norm(dim=2)
    each = each * (2**0.5 + doubt.clamp(max=term.items**0.5) / part)
    return each.masked_fill(term.target == term.padding, 0.0).sum(1)
