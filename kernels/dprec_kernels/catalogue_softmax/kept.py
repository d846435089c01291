"""What the forward pass has computed and the gradient needs again, kept where there is room.

A gradient can always be had by computing the scores once more. That costs a third of the time, so a bounded
amount of memory, the same at every step, holds as many of them as fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dprec_kernels.workspace import Loan, workspace

LIMIT = 1 << 26  # bytes: 64 MB


class Kept:
    """exp(score - shift) of the first positions for all items, tile by tile, 0 at each position's own target.

    >>> import torch
    >>> loan = workspace.lend("an example", 2 * 3, torch.zeros(1))
    >>> Kept(loan, positions=2).tile(slice(0, 3)).shape
    torch.Size([2, 3])
    """

    def __init__(self, loan: Loan, positions: int) -> None:
        self.positions = positions
        self._loan = loan

    def tile(self, items: slice, first: int = 0, count: int | None = None) -> Tensor:
        """Return the memory (positions, tile) of these items, of so many positions from the first on."""
        width = items.stop - items.start
        start, count = self.positions * items.start + first * width, self.positions - first if count is None else count
        return self._loan.memory.as_strided((count, width), (width, 1), start)


def room_for(counts: Sequence[int], items: int, like: Tensor) -> Kept | None:
    """Return room for the positions of as many passes, from the first on, as there is memory for.

    There is none while another call's is in use.
    """
    most, positions = LIMIT // like.dtype.itemsize // items, 0
    for count in counts:
        if positions + count > most:
            break
        positions += count
    loan = workspace.lend("kept", positions * items, like) if positions else None
    return None if loan is None else Kept(loan, positions)
