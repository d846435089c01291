"""What the host knows, for a device: no copy waits until it has computed all that it was told before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device, wherever it is. What comes back to the host is awaited."""
    if tensor.device.type != "cpu":
        return tensor.to(device)
    if device.type == "cuda":  # from other memory, or where rows lie apart, a copy waits
        tensor = tensor.contiguous().pin_memory()
    return tensor.to(device, non_blocking=True)


def sent(numbers: Sequence[object], device: torch.device) -> Tensor:
    """Return these numbers, or lists of them, as an int64 tensor of the device.

    >>> sent([[1, 2], [3, 4]], torch.device("cpu"))
    tensor([[1, 2],
            [3, 4]])
    """
    return to_device(torch.tensor(numbers, dtype=torch.int64), device)


def spread(columns: Sequence[Sequence[int]], times: Sequence[int], device: torch.device) -> Tensor:
    """Return (columns, sum of times): each number of each column so many times.

    >>> spread([[0, 5, 9], [7, 8, 6]], [2, 0, 1], torch.device("cpu"))
    tensor([[0, 0, 9],
            [7, 7, 6]])
    """
    if device.type == "cpu":
        each, often = (torch.tensor(numbers, dtype=torch.int64) for numbers in (columns, times))
        return each.repeat_interleave(often, 1)
    each = sent([*columns, [*accumulate(times)]], device)  # and not what it gives, which may be a million numbers
    place = torch.searchsorted(each[-1], torch.arange(sum(times), device=device), right=True)
    return each[:-1].index_select(1, place)
