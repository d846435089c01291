"""What the forward pass has computed and the gradient needs again, kept where there is room.

A gradient can always be had by computing the scores once more. That costs a third of the time, so a bounded
amount of memory, the same at every step, holds as many of them as fit.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from dprec_kernels.workspace import Loan, workspace

LIMIT = 1 << 26  # bytes: 64 MB


class Kept:
    """exp(score - shift) of some positions for all items, tile by tile.

    >>> import torch
    >>> kept = Kept(torch.empty(2 * 3), positions=2, items=3)
    >>> kept.tile(slice(0, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(self, memory: Tensor, positions: int, items: int, loan: Loan | None = None) -> None:
        self.positions = positions
        self.items = items
        self.shifts: list[tuple[slice, Tensor]] = []  # of each tile: (positions, 1)
        self._memory = memory
        self._loan = loan

    def tile(self, items: slice) -> Tensor:
        """The memory (positions, tile) of these items."""
        start, width = self.positions * items.start, items.stop - items.start
        return self._memory[start : start + self.positions * width].view(self.positions, width)

    def tiles(self, log_total: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yield items, exponentials (positions, tile) and what makes softmaxes of them (positions, 1)."""
        for items, shift in self.shifts:
            yield items, self.tile(items), (shift - log_total.unsqueeze(1)).exp_()


class Room:
    """Memory for what one call keeps; there is none while another call's is in use."""

    def __init__(self, positions: int, items: int, like: Tensor) -> None:
        most = LIMIT // like.dtype.itemsize
        self._items = items
        self._loan = workspace.lend("kept", min(most, positions * items), like)
        self._taken = 0

    def take(self, positions: int) -> Kept | None:
        """Room for these positions, None where it is used up."""
        start, size = self._taken, positions * self._items
        if self._loan is None or start + size > self._loan.memory.numel():
            return None
        self._taken += size
        return Kept(self._loan.memory[start : start + size], positions, self._items, self._loan)
