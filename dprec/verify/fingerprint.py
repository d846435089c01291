"""Whether anything that a module holds has been written to."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor, nn

LARGEST = 1 << 22  # numbers; of a larger tensor only the first so many are looked at
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprints(module: nn.Module) -> dict[str, int]:
    """Return a number for each parameter and buffer that changes with their bits.

    >>> layer = nn.Linear(2, 2)
    >>> before = fingerprints(layer)
    >>> layer.bias.data += 1e-3
    >>> [name for name, value in fingerprints(layer).items() if before[name] != value]
    ['bias']
    """
    return {name: _sum(tensor.detach()) for name, tensor in chain(module.named_parameters(), module.named_buffers())}


def _sum(tensor: Tensor) -> int:
    if tensor.layout != torch.strided or tensor.is_complex() or not tensor.numel():
        return 0
    flat = (tensor if tensor.is_contiguous() else tensor.contiguous()).view(-1)[:LARGEST]
    return int(flat.view(_WORDS[flat.element_size()]).sum(dtype=torch.int64))
