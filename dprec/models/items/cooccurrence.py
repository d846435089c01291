"""Sums over users' histories: which items a user saw, and which items a user saw near each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dprec.accounting.release import Portion
from dprec.data.logs.histories import Histories

PAIRS = 1 << 22  # in one portion; limits the memory


def item_counts(histories: Histories) -> Iterator[Portion]:
    """Every item that a user saw, once; the entry of item i is number i."""
    for users, _, items in user_events(histories, each=1):
        met = np.unique(np.stack([users, items], 1), axis=0)
        yield Portion(met[:, 0], met[:, 1], np.ones(len(met)))


def pair_weights(
    histories: Histories, place: np.ndarray, weight: np.ndarray, window: int, decay: float
) -> Iterator[Portion]:
    """Unordered pairs of chosen items near each other: the entry of places i < j of n is number i * n + j.

    `place` (items,) is the place of an item among the chosen ones, n for other items; `weight` (n,) scales it. A pair
    at distance k counts decay^(k-1), up to distance `window` among the chosen items of a user.
    """
    chosen = len(weight)
    for users, places, _ in user_events(histories, window, place, chosen):
        keys, owners, values = [], [], []
        for distance in range(1, min(window, len(users) - 1) + 1):
            same = users[distance:] == users[:-distance]
            left, right = places[:-distance][same], places[distance:][same]
            apart = left != right
            low, high = np.minimum(left, right)[apart], np.maximum(left, right)[apart]
            keys.append(low * chosen + high)
            owners.append(users[distance:][same][apart])
            values.append(decay ** (distance - 1) * weight[low] * weight[high])
        if keys:
            yield Portion(np.concatenate(owners), np.concatenate(keys), np.concatenate(values))


def user_events(
    histories: Histories, each: int, place: np.ndarray | None = None, chosen: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield events of whole users as (user, place, item), so many that `each` times their number fits a portion."""
    for users, found in histories.portions(max(1, PAIRS // each)):
        items = found.astype(np.int64)
        places = items if place is None else place[items]
        keep = slice(None) if place is None else places < chosen
        yield users[keep], places[keep], items[keep]
