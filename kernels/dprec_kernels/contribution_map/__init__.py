"""Which rows of the tables enough users touch, decided under noise, in memory that grows with what is touched."""

from __future__ import annotations

import torch
from torch import Tensor

from dprec_kernels.contribution_map import pieces, reference
from dprec_kernels.contribution_map.pieces import Uniforms

__all__ = ["contribution_map", "pieces", "reference"]


def contribution_map(
    rows: Tensor,
    size: int,
    *,
    clip: float,
    noise_multiplier: float,
    threshold: float,
    uniforms: Uniforms,
    offsets: Tensor | None = None,
    ignore: int = -1,
    domain: Tensor | None = None,
) -> Tensor:
    """Return the sorted int64 rows, out of `size`, whose noisy contributions reach `threshold`.

    rows holds what each user touched: (users, k), filled up with `ignore`, or (m,) with offsets (users + 1,), where
    user u has rows[offsets[u]:offsets[u + 1]]. Every user is a vector of zeros and ones, one at each distinct row,
    scaled down to L2 norm `clip`; the map is their sum, plus N(0, (noise_multiplier · clip)²) at each of the `size`
    rows. With a `domain`, sorted and distinct, the map has its rows alone: what a user touches elsewhere is left out.

    The law of the result is that of the dense map, which is never built: rows that somebody touched are decided one
    by one, of the others the survivors are drawn by the gaps between them. Size and memory of the work are those of
    what is touched and what survives. `uniforms(n)` draws n float64 numbers from 0 up to, but without, 1.

    >>> rows = torch.tensor([[3, 5, 3], [3, -1, -1], [3, 7, -1]])
    >>> contribution_map(rows, 10, clip=1.0, noise_multiplier=0.0, threshold=2.0, uniforms=torch.rand)  # 2 / √2 + 1
    tensor([3])
    """
    if rows.dim() != (2 if offsets is None else 1) or rows.dtype != torch.int64:
        raise ValueError(f"rows must be int64 (users, k), or (m,) with offsets, not {rows.dtype} {tuple(rows.shape)}")
    if offsets is not None and (len(offsets) == 0 or int(offsets[-1]) != len(rows)):
        raise ValueError(f"offsets must end with the {len(rows)} rows there are")
    if not (clip > 0 and noise_multiplier >= 0):
        raise ValueError(f"clip {clip} must be above 0 and noise_multiplier {noise_multiplier} at least 0")
    if not 0 <= size < pieces.MOST_ROWS:
        raise ValueError(f"size {size} must be from 0 to 2**53 - 1")
    if domain is not None:
        rows, size = pieces.places(rows, domain, ignore), len(domain)
    with torch.no_grad():
        touched, sums = pieces.contributions(rows, size, clip, offsets, -1 if domain is not None else ignore)
        found = pieces.survivors(touched, sums, size, threshold, noise_multiplier * clip, uniforms)
    return found if domain is None else domain[found]
