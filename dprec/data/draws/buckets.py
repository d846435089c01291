"""Lengths to which rows are padded, decided only by each row's own length.

A processor's rounding depends on shapes. If a row were padded to the longest of its batch, another user's history would
decide the last digits of all users' gradients. So lengths come from a short list, and all rows of a micro-batch have
the same one.
"""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor

from dprec.errors import UserError

RATIO = 1.25  # of a length to the one before: costs 2 to 8 % of padding on logs of films and of purchases
USERS = 40  # expected for each length: a batch of few users has few lengths, since each takes its own pass
LONGEST = 1024  # assumed if the greatest length of a row is unknown


class Buckets:
    """The list of padded lengths of a run, computed from public numbers.

    Args:
        expected: users in a step, on average. Few users share few lengths.
        longest: the greatest length of a row; None if there is no limit.

    >>> Buckets(expected=1000, longest=20).widths(np.array([3, 9, 17, 20]))
    array([ 3, 11, 20, 20])
    >>> Buckets(expected=80, longest=20).widths(np.array([3, 9, 17, 20]))
    array([ 4, 20, 20, 20])
    """

    def __init__(self, expected: float, longest: int | None = None) -> None:
        top = LONGEST if longest is None else max(2, longest)
        most = math.ceil(math.log(top) / math.log(RATIO))
        self._ratio = top ** (1 / max(1, min(most, int(expected) // USERS)))
        self._longest = longest

    def widths(self, lengths: np.ndarray) -> np.ndarray:
        """Return the padded length of rows of these lengths, 1 at least."""
        end = max(1, int(lengths.max(initial=1)))
        known = np.array(self._up_to(end if self._longest is None else max(end, self._longest)))
        found: np.ndarray = known[np.searchsorted(known, np.maximum(lengths, 1))]
        return found

    def groups(self, lengths: np.ndarray, tokens: int, most: int | None = None) -> list[tuple[np.ndarray, int]]:
        """Return groups of rows' places, each with one padded length, longest first, and that length.

        A group has at most `tokens` numbers, padding included, and at most `most` rows; a single row may have more.

        >>> [(rows.tolist(), width) for rows, width in Buckets(80, 20).groups(np.array([3, 9, 1, 4]), tokens=8)]
        [([1], 20), ([0, 3], 4), ([2], 1)]
        """
        if tokens < 1:
            raise UserError(f"data.tokens is {tokens}: give a micro-batch at least 1 token")
        widths, found = self.widths(lengths), []
        for width in sorted(set(widths.tolist()), reverse=True):
            rows = np.flatnonzero(widths == width)
            at_once = max(1, min(tokens // width, most or len(rows)))
            found += [(part, width) for part in np.array_split(rows, -(-len(rows) // at_once))]
        return found

    def _up_to(self, length: int) -> list[int]:
        widths, size = [1], 1.0
        while widths[-1] < length:
            size *= self._ratio
            if round(size) > widths[-1]:
                widths.append(round(size))
        return widths


def pad_rows(rows: list[Tensor], value: float = 0, expected: float = 1000) -> Tensor:
    """Stack one row per user, padded on the right to a length that the rows' own lengths decide.

    Use it in your own collate function, in place of `torch.nn.utils.rnn.pad_sequence`: a user's numbers are then the
    same, bit for bit, in any batch. dprec's loaders pass a collate function rows of one bucket.

    Args:
        rows: a tensor for each user, whose first dimension is padded; the others are equal.
        value: what fills the padding.
        expected: expected users in a step, which determine the list of lengths; few users have few lengths.

    >>> import torch
    >>> from dprec import pad_rows
    >>> pad_rows([torch.tensor([4, 7]), torch.tensor([9])]).tolist()
    [[4, 7], [9, 0]]
    """
    (width,) = Buckets(expected).widths(np.array([max(map(len, rows), default=1)])).tolist()
    out = rows[0].new_full((len(rows), width, *rows[0].shape[1:]), value)
    for place, row in enumerate(rows):
        out[place, : len(row)] = row
    return out
