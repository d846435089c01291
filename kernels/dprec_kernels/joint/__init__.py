"""Clipping for all parameters of a step at once, on a GPU: users' norms, their scales, and scaled sums.

Each takes a launch or two for any number of parameters. On other devices, parameters are processed one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from dprec_kernels.joint import reference
from dprec_kernels.joint.reference import Law, Measure, Positions, Products, Softmaxes, Vectors
from dprec_kernels.paths import on_gpu

__all__ = ["Law", "Measure", "Positions", "Products", "Softmaxes", "Vectors", "measured", "reference", "scaled", "sums"]


def measured(measures: Sequence[Measure], like: Tensor, part: float) -> tuple[Tensor, Tensor]:
    """Return (n, B) users' squared norms, and (n, B) bounds on the rounding of their sums, in float64.

    The bounds are `part` times the lengths of all terms. `like` (B,) is on the device.

    >>> lines = Products(torch.ones(1, 3, 2), torch.ones(1, 3, 2))
    >>> squared, off = measured([Measure([lines])], torch.ones(1), 0.5)  # four entries, each 3; three terms of length 2
    >>> round(float(squared), 6), round(float(off), 6)
    (36.0, 3.0)
    """
    with torch.no_grad():
        found: tuple[Tensor, Tensor] = _fast(like).measured(measures, like, part)
    return found


def scaled(squared: Tensor, off: Tensor, raised: int, losses: Tensor, law: Law) -> tuple[Tensor, Tensor, Tensor]:
    """Return (B,) norms and scales, in float64, and (2, B) whether a scale is 0, and the losses.

    The norms of the first `raised` parameters, from squared (n, B), are increased by their bounds `off` (n, B).

    >>> squared, off = torch.tensor([[9.0]]).double(), torch.tensor([[2.0]]).double()
    >>> [each.tolist() for each in scaled(squared, off, 1, torch.ones(1), Law(0, 1.0, 0.0, 0.0, 0.0, 9.0))]
    [[5.0], [0.2], [[0.0], [1.0]]]
    """
    with torch.no_grad():
        found: tuple[Tensor, Tensor, Tensor] = _fast(losses).scaled(squared, off, raised, losses, law)
    return found


def sums(terms: Sequence[Products | Vectors | Positions], weight: Tensor) -> list[Tensor]:
    """Return Σ_u weight_u Σ_t left_t rightᵀ_t (o, i) of each linear map, Σ_u weight_u values_u (1, d) of others.

    >>> sums([Vectors(torch.ones(3, 1, 2))], torch.tensor([1.0, 0.5, 0.25]))
    [tensor([[1.7500, 1.7500]], dtype=torch.float64)]
    """
    with torch.no_grad():
        found: list[Tensor] = _fast(weight).sums(terms, weight)
    return found


def _fast(like: Tensor) -> ModuleType:
    if len(like) and on_gpu(like):
        from dprec_kernels.joint import triton

        return triton
    return reference
