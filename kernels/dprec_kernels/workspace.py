"""Scratch memory that is kept: fresh pages are the most expensive memory there is on a CPU."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class Loan:
    """Memory that is its holder's alone for as long as anyone refers to the loan."""

    memory: Tensor


class Workspace(threading.local):
    """Hands out uninitialised tensors by name; the same name gives the same memory again, in each thread its own.

    >>> workspace = Workspace()
    >>> first = workspace.take("scores", (4, 8), torch.zeros(1))
    >>> workspace.take("scores", (2, 8), torch.zeros(1)).data_ptr() == first.data_ptr()
    True
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self._lent: dict[str, weakref.ref[Loan]] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return a tensor of this shape, of the dtype and on the device of `like`; its contents are anything."""
        key, size = (name, like.dtype, like.device), math.prod(shape)
        if key not in self._held or self._held[key].shape[0] < size:
            with torch.inference_mode(False):  # memory first needed while ranking must serve training too
                self._held[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._held[key][:size].view(tuple(shape))

    def lend(self, name: str, size: int, like: Tensor) -> Loan | None:
        """Return memory of this name that no later call gets while the loan lives; None while it is lent."""
        lent = self._lent.get(name)
        if lent is not None and lent() is not None:
            return None
        loan = Loan(self.take(name, (size,), like))
        self._lent[name] = weakref.ref(loan)
        return loan


workspace = Workspace()
