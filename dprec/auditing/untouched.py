"""A leak that needs no statistics: without dense noise, a row that nobody touched keeps every bit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from torch import Tensor

from dprec.data.histories import Histories


def untouched_rows(start: Mapping[str, Tensor], end: Mapping[str, Tensor], rows: int) -> dict[str, list[int]]:
    """Rows 1 and up of every table with this many rows that are bit-identical in two states of one model.

    Row 0 is padding and never changes. In a private model, every other row has noise.

    >>> import torch
    >>> start = {"table": torch.zeros(4, 1), "bias": torch.zeros(2)}
    >>> end = {"table": torch.tensor([[0.0], [1.0], [0.0], [2.0]]), "bias": torch.ones(2)}
    >>> untouched_rows(start, end, rows=4)
    {'table': [2]}
    """
    tables = [name for name, value in start.items() if value.dim() == 2 and len(value) == rows]
    same = {name: (start[name].cpu() == end[name].cpu()).all(1) for name in tables}
    return {name: (rows_kept[1:].nonzero().squeeze(1) + 1).tolist() for name, rows_kept in same.items()}


def touching_alone(histories: Histories) -> dict[int, int]:
    """Items that exactly one user touched, and that user.

    If only the rows of touched items change, a change in such an item's row reveals that this user was there.

    >>> touching_alone(Histories(np.array([0, 3, 5]), np.array([4, 4, 7, 7, 9])))
    {4: 0, 9: 1}
    """
    users = np.repeat(np.arange(histories.users), histories.lengths)
    met = np.unique(np.stack([histories.items, users], 1), axis=0)  # (n, 2) by item
    items, first, count = np.unique(met[:, 0], return_index=True, return_counts=True)
    return {int(item): int(met[place, 1]) for item, place in zip(items[count == 1], first[count == 1], strict=True)}
