"""Sparse records whose mean is hard to release: blocks of coordinates, each with a hard dense data set of its own.

The lower bounds of Ghazi, Guzmán, Kamath, Kumar and Manurangsi (2024) come from such block-diagonal data: a record,
which lies in one block, has s entries, and what is hard in s dense coordinates is hard in every block at once.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse


def block_records(
    records: int, dimension: int, sparsity: int, rng: np.random.Generator, bias: float = 1.0
) -> sparse.csr_array:
    """Return rows of norm 1 with `sparsity` entries ±1/√s, each within one of the blocks, which have equally many rows.

    A block has signs of its own, drawn once; an entry has its block's sign with probability (1 + bias) / 2. With a bias
    of 1 all rows of a block are alike, and the mean of all has the largest ℓ1-norm that such rows can have, √s.

    >>> rows = block_records(6, 7, 2, np.random.default_rng(0))
    >>> rows.shape, rows.nnz, float(abs(rows.mean(axis=0)).sum().round(6))
    ((6, 7), 12, 1.414214)
    """
    blocks = dimension // sparsity
    if not 1 <= sparsity <= dimension or records < 1 or not 0 <= bias <= 1:
        raise ValueError(f"{records} records, {sparsity} of {dimension} entries and a bias of {bias} make no blocks")
    signs = rng.choice((-1.0, 1.0), size=(blocks, sparsity))
    block = np.arange(records) % blocks
    kept = np.where(rng.random((records, sparsity)) < (1 + bias) / 2, 1.0, -1.0)
    values = signs[block] * kept / np.sqrt(sparsity)
    places = block[:, None] * sparsity + np.arange(sparsity)
    starts = np.arange(0, records * sparsity + 1, sparsity)
    return sparse.csr_array((values.ravel(), places.ravel(), starts), shape=(records, dimension))
