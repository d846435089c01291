"""What is measured of each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Products:
    """A linear map: each user's gradient is Σ_t left_t rightᵀ_t."""

    left: Tensor  # (B, T, o) float32
    right: Tensor  # (B, T, i) float32


@dataclass(frozen=True)
class Vectors:
    """Rows that are read, or gradients as they are, of which a user has one."""

    values: Tensor  # (B, N, d) float32


@dataclass(frozen=True)
class Positions:
    """A bias or a normalisation: each user's gradient is Σ_t values_t, times factors_t number by number if given."""

    values: Tensor  # (B, T, d) float32
    factors: Tensor | None = None  # (B, T, d) float32


@dataclass(frozen=True)
class Softmaxes:
    """A catalogue softmax: a term is a position's vector times its chances, which are rounded as their scores are."""

    hidden: Tensor  # (B, T, d) float32
    weight: Tensor  # (B, T) float32, the gradient at each loss
    log_total: Tensor  # (B, T) float32
    likeliest: Tensor  # (B, T) float32, the largest chance
    target: Tensor  # (B, T) int64
    padding: int  # of the target
    items: int


@dataclass(frozen=True)
class Measure:
    """What is asked of one parameter.

    `squared` are its users' squared norms (B,) in float64, where they are known. Where not, `terms` is one: a linear
    map, a sum over positions or a vector of each user. `rounds` says whether the terms' lengths tell what rounding
    adds; `off` (B,) adds more.
    """

    terms: Sequence[Products | Vectors | Positions | Softmaxes] = ()
    squared: Tensor | None = None
    rounds: bool = True
    off: Tensor | None = None

    def __post_init__(self) -> None:
        if self.squared is None and len(self.terms) != 1:
            raise ValueError(f"a norm is taken of one term, not of {len(self.terms)}: give the squared norms")
