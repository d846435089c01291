"""The mean of a sequence of vectors so far, at every position, with equal weights or weights that fade."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def running_means(x: Tensor, most: int | None = None) -> Tensor:
    """Return the mean of the vectors (B, T, d) up to each position, of the last `most` of them if that is given.

    Running sums give all of them in one pass.

    >>> running_means(torch.tensor([[[1.0], [3.0], [8.0]]])).flatten().tolist()
    [1.0, 2.0, 4.0]
    >>> running_means(torch.tensor([[[1.0], [3.0], [8.0]]]), most=2).flatten().tolist()
    [1.0, 2.0, 5.5]
    """
    length = x.shape[1]
    held = torch.arange(1, length + 1, device=x.device)  # (T,) vectors in each position's mean
    sums = x.cumsum(1)  # (B, T, d)
    if most is not None and most < length:
        held = held.clamp(max=most)
        # Padding is on the right, so a vector that leaves the sum was in it before.
        sums = sums - F.pad(sums[:, :-most], (0, 0, most, 0))
    return sums / held.unsqueeze(-1)


def fading_means(x: Tensor, fade: float) -> Tensor:
    """Return the mean of the vectors (B, T, d) up to each position, which count less by `fade` with each further back.

    >>> fading_means(torch.tensor([[[1.0], [4.0], [4.75]]]), 0.5).flatten().tolist()
    [1.0, 3.0, 4.0]
    """
    if fade == 1:
        return running_means(x)
    places = torch.arange(x.shape[1], device=x.device)
    ages = places[:, None] - places
    counts = torch.where(ages < 0, 0.0, fade ** ages.clamp(min=0).to(x.dtype))  # (T, T)
    means: Tensor = counts / counts.sum(1, keepdim=True) @ x
    return means
