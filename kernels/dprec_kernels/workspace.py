"""Scratch memory that is kept for reuse: on a CPU, new pages cost most."""

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
    """Memory that belongs only to its holder as long as the loan is referenced."""

    memory: Tensor


class Workspace(threading.local):
    """Returns uninitialised tensors by name; the same name returns the same memory again, separately in each thread.

    >>> workspace = Workspace()
    >>> first = workspace.take("scores", (4, 8), torch.zeros(1))
    >>> workspace.take("scores", (2, 8), torch.zeros(1)).data_ptr() == first.data_ptr()
    True
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self._lent: dict[str, weakref.ref[Loan]] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return an uninitialised tensor of this shape, with the dtype and device of `like`."""
        key, size = (name, like.dtype, like.device), math.prod(shape)
        if key not in self._held or self._held[key].shape[0] < size:
            with torch.inference_mode(False):  # ranking may allocate it first, and training uses it too
                self._held[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._held[key][:size].view(tuple(shape))

    def lend(self, name: str, size: int, like: Tensor) -> Loan | None:
        """Return memory of this name that no later call gets while the loan exists; None if it is lent already."""
        lent = self._lent.get(name)
        if lent is not None and lent() is not None:
            return None
        loan = Loan(self.take(name, (size,), like))
        self._lent[name] = weakref.ref(loan)
        return loan


workspace = Workspace()
