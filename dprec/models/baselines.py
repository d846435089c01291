"""Baselines that count users' items without noise, so they are NOT PRIVATE: they show the cost of privacy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dprec.data.draws.batch import RankingBatch
from dprec.data.logs.histories import Histories
from dprec.errors import UserError

NEIGHBOURS = 100  # of an item that are used
PENALTY = 500.0  # λ of EASE
LARGEST = 20_000  # items of EASE: its two tables then take 6.4 GB
_PAIRS = 2**24  # similarities at once


class ItemToItem:
    """Ranks items by the sum of their weights from the items that a user has seen.

    >>> log = Histories.joined(np.array([0, 2, 4, 6]), np.array([1, 2, 1, 2, 3, 1], dtype=np.int32))
    >>> batch = RankingBatch(torch.tensor([[1]]), torch.tensor([2]), torch.tensor([[1]]))
    >>> ItemToItem(item_knn(met(log, items=4))).scores(batch).round(decimals=2)
    tensor([[0.0000, 0.0000, 0.8200, 0.5800]])

    Args:
        weights: (items, items) from each item to each.
    """

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def scores(self, batch: RankingBatch) -> Tensor:
        """Return a score for every item id (B, items)."""
        users, places = np.nonzero(batch.seen.cpu().numpy())
        items = batch.seen.cpu().numpy()[users, places]
        found = _once(users, items, (len(batch), self.weights.shape[0])) @ self.weights
        dense = found.toarray() if sparse.issparse(found) else found
        return torch.from_numpy(dense).to(batch.seen.device)


def met(histories: Histories, items: int) -> Any:
    """Return which user has which item in training: a sparse (users, items) of ones."""
    users, found = (np.concatenate(column) for column in zip(*histories.portions(), strict=True))
    return _once(users, found, (histories.users, items))


def item_knn(visits: Any) -> Any:
    """ItemKNN: the cosine of two items' users, of the nearest items of each.

    Args:
        visits: (users, items) ones.
    """
    count = np.maximum(visits.sum(0), 1)
    unit = visits @ sparse.diags_array((count**-0.5).astype(np.float32))
    rows, size = [], max(1, _PAIRS // visits.shape[1])
    for first in range(0, visits.shape[1], size):
        near = (unit[:, first : first + size].T @ unit).tocoo()
        other = near.row + first != near.col
        row, column, value = near.row[other], near.col[other], near.data[other]
        order = np.lexsort((-value, row))
        row, column, value = row[order], column[order], value[order]
        nearest = np.arange(len(row)) - np.searchsorted(row, row) < NEIGHBOURS
        rows.append(sparse.csr_array((value[nearest], (row[nearest], column[nearest])), shape=near.shape))
    return sparse.vstack(rows, format="csr")


def ease(visits: Any) -> np.ndarray:
    """EASE (Steck, 2019): a linear model that predicts each item from a user's other items.

    Args:
        visits: (users, items) ones.
    """
    gram = torch.from_numpy((visits.T @ visits).toarray().astype(np.float64))
    gram.diagonal().add_(PENALTY)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))
    del gram
    weights = inverse.div_(-inverse.diagonal().clone()).fill_diagonal_(0.0)
    return weights.float().numpy()


BASELINES: dict[str, Callable[[Any], Any]] = {"itemknn": item_knn, "ease": ease}


def refuse_large(name: str, items: int) -> None:
    """Refuse a baseline whose table of all pairs of items would not fit memory."""
    if name == "ease" and items > LARGEST:
        raise UserError(f"baselines: ease needs a table of {items:,} x {items:,} items: leave it out, or use itemknn")


def _once(users: np.ndarray, items: np.ndarray, shape: tuple[int, int]) -> Any:
    """Ones where a user has an item."""
    found = sparse.csr_array((np.ones(len(items), dtype=np.float32), (users, items)), shape=shape)
    found.data[:] = 1.0  # duplicates were added up
    return found
