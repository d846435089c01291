"""Invented histories with the structure of film watching: genres, series and a long tail."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dprec.data.logs.histories import Interactions
from dprec.errors import UserError

GENRES = 12
SERIES = 0.35  # probability that an item with a sequel is followed by it
STAY, NEIGHBOUR = 0.8, 0.15  # otherwise: stay in the genre, go to the next one, or (the remaining probability) to any
SHORTEST, LONGEST, STOP = 5, 20, 0.12  # events a user: shortest + geometric with this chance to stop


@dataclass(frozen=True)
class World:
    """The distribution of the next item given the last one: few genres, so a low-rank model learns most of it.

    Let g be the genre of the last item. With probability SERIES the next item is its sequel, if it has one. Otherwise a
    genre is chosen (g, g + 1, or any by its popularity), and then an item of it by its weight. Items that the user has
    seen do not come again: the distribution is conditioned on a new item.
    """

    genre: np.ndarray  # (V,) genre of every item
    members: np.ndarray  # (V,) items grouped by genre, most popular first
    first: np.ndarray  # (G + 1,) where each genre starts in members
    weight: np.ndarray  # (V,) popularity inside the genre, along members; sums to 1 in each genre
    sequel: np.ndarray  # (V,) the item that continues an item, -1 where there is none
    genre_popularity: np.ndarray  # (G,)

    @classmethod
    def invent(cls, items: int, rng: np.random.Generator) -> World:
        genres = max(2, min(GENRES, items // 4))
        members = rng.permutation(items)
        first = np.linspace(0, items, genres + 1).astype(np.int64)
        genre, sequel = np.empty(items, dtype=np.int64), np.full(items, -1)
        weight = np.empty(items)
        for number, (start, end) in enumerate(pairwise(first)):
            genre[members[start:end]] = number
            zipf = 1 / np.arange(2, end - start + 2)
            weight[start:end] = zipf / zipf.sum()
            popular = rng.permutation(members[start : start + max(2, (end - start) // 2)])
            sequel[popular] = np.roll(popular, -1)
        popularity = 1 / np.arange(4, genres + 4)
        return cls(genre, members, first, weight, sequel, popularity / popularity.sum())

    def propose(self, last: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """One draw of the next item for every entry of `last` (-1: nothing yet), seen before or not."""
        fresh = last < 0
        chance = rng.random(len(last))
        genre = rng.choice(len(self.genre_popularity), size=len(last), p=self.genre_popularity)
        near = ~fresh & (chance < STAY + NEIGHBOUR)
        step = chance[near] >= STAY
        genre[near] = (self.genre[last[near]] + step) % len(self.genre_popularity)
        # Every genre's weights sum to 1, so genre g owns the interval [g, g + 1) of the running sum.
        place = np.searchsorted(np.cumsum(self.weight), genre + rng.random(len(last)), side="right")
        drawn = self.members[np.clip(place, self.first[genre], self.first[genre + 1] - 1)]
        sequel = np.where(fresh, -1, self.sequel[last])
        return np.where((sequel >= 0) & (rng.random(len(last)) < SERIES), sequel, drawn)


def synthetic_interactions(users: int = 20_000, items: int = 300, seed: int = 0) -> Interactions:
    """Histories of 5 to 20 different items; the arguments determine them.

    >>> events = synthetic_interactions(users=100, items=50)
    >>> len(events.item_ids), bool((np.bincount(events.user) >= 5).all())
    (50, True)
    """
    if users < 1:
        raise UserError(f"data.synthetic_users is {users}: give at least 1 user")
    if items < 2 * SHORTEST:
        raise UserError(f"data.synthetic_items is {items}: give at least {2 * SHORTEST} items")
    rng = np.random.default_rng(seed)
    world = World.invent(items, rng)
    longest = min(LONGEST, items // 2)
    lengths = np.minimum(SHORTEST - 1 + rng.geometric(STOP, users), longest)
    met = np.full((users, longest), -1, dtype=np.int32)  # (U, L)
    for place in range(longest):
        waiting = np.flatnonzero(lengths > place)
        while len(waiting):
            last = met[waiting, place - 1] if place else np.full(len(waiting), -1)
            item = world.propose(last, rng)
            new = (met[waiting, :place] != item[:, None]).all(axis=1)
            met[waiting[new], place] = item[new]
            waiting = waiting[~new]
    digits = len(str(items))
    return Interactions.of(
        user=np.repeat(np.arange(users, dtype=np.int32), lengths),
        item=met[met >= 0],
        item_ids=[f"genre{genre:02d}-item{number:0{digits}d}" for number, genre in enumerate(world.genre)],
    )
