"""Scratch memory that is kept: fresh pages are the most expensive memory there is on a CPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

import torch
from torch import Tensor


class Workspace(threading.local):
    """Hands out uninitialised tensors by name; the same name gives the same memory again, in each thread its own.

    >>> workspace = Workspace()
    >>> first = workspace.take("scores", (4, 8), torch.zeros(1))
    >>> workspace.take("scores", (2, 8), torch.zeros(1)).data_ptr() == first.data_ptr()
    True
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return a tensor of this shape, of the dtype and on the device of `like`; its contents are anything."""
        key, size = (name, like.dtype, like.device), math.prod(shape)
        held = self._held.get(key)
        if held is None or held.numel() < size:
            with torch.inference_mode(False):  # memory first needed while ranking must serve training too
                held = self._held[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return held[:size].view(*shape)


workspace = Workspace()
