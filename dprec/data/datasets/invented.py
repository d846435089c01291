"""Invented data: histories, clicks as in Criteo's logs or with named columns, and texts. The arguments determine all.

Histories have the structure of film watching: genres, series and a long tail. Clicks have features with a long tail,
and a network learns them better than a linear model. The class of a text depends on rare words, which separates a
table that learns from one that does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from dprec.data.click_logs.columns import ClickColumns
from dprec.data.click_logs.log import side_by_side
from dprec.data.logs.histories import Interactions
from dprec.errors import UserError

NUMBERS, FEATURES = 13, 26  # counts and categorical features of a record of Criteo's form
GENRES = 12
SERIES = 0.35  # probability that an item with a sequel is followed by it
STAY, NEIGHBOUR = 0.8, 0.15  # otherwise: stay in the genre, go to the next one, or (the remaining probability) to any
SHORTEST, LONGEST, STOP = 5, 20, 0.12  # events a user: shortest + geometric with this chance to stop
BASE_RATE = 0.25
NEW = 0.3  # share of the buckets of a large feature that appear after the first day
LARGE = 30  # a feature with at least this many buckets counts as large
TURN = np.pi / 4  # how far tastes turn between the first day and the last
PAIRED, SECOND, SHIFT = 1.9, 0.3, 0.6  # of the paired part: weight, share of the second axis, shift of both sums
BENT, STRAIGHT = 1.1, 0.5  # standard deviations of the two counted parts of the logit
CHUNK = 2**14  # records drawn together: their draws stay in the cache
TELLING = 0.25  # share of the words that indicate a class, all of them outside the most frequent
FREQUENT = 50
STRAY = 0.2
NOBODY = -1
SHORT_TEXT, LONG_TEXT = 6, 24


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


class ClickWorld:
    """The distribution of clicks. A bucket of a categorical feature is a vector in the plane; missing is the origin.

    Popularity: the bucket at place p of a feature is drawn with probability log(1 + 1/p), up to a factor. Before a
    bucket exists, its draws go to the last bucket before it that exists. With a `drift`, every day shuffles this share
    of a large feature's places among their buckets. A click's logit is the sum of

    - a paired part: the scalar product of two sums of vectors, one over the features of the user (the even ones),
      one over those of the ad (the odd ones). Both sums are shifted, so a part of the product is linear. The user's
      sum turns with the days;
    - a counted part: some counts act by their logarithm, the others by the distance of their logarithm from its mean.

    The arguments determine everything; the draws of a day do not depend on the other days.
    """

    def __init__(self, vocabularies: Sequence[int], days: int, seed: int = 0, drift: float = 0.0) -> None:
        rng = np.random.default_rng([seed, 0])
        sizes = np.asarray(vocabularies)
        self.seed, self.days = seed, days
        self.first = np.concatenate([[0], np.cumsum(sizes)[:-1]])  # (F,) row of each feature's id 0: missing
        self.logs = np.log(sizes).astype(np.float32)
        self.last = (sizes - 1).astype(np.int32)
        feature = np.repeat(np.arange(len(sizes)), sizes)
        place = np.arange(len(feature)) - self.first[feature]  # 1 is the most popular, 0 is missing
        # (R,) row of the bucket at a place: the places of a feature are shuffled, missing stays in its place
        self.row_at = np.lexsort((rng.random(len(feature)), place > 0, feature)).astype(np.int32)
        self.drifted = self._drifted(np.where((sizes[feature] > LARGE) & (place > 0), feature, -1), drift)
        born = rng.integers(1, max(2, days), len(feature))
        new = (rng.random(len(feature)) < NEW) & (sizes[feature] > LARGE) & (place > 1) & (days > 1)
        self.born = born * new
        self._invent_traits(feature, place, rng)
        self._invent_counts(rng)
        self.missing = np.where(rng.random(FEATURES) < 0.4, rng.uniform(0.02, 0.4, FEATURES), 0).astype(np.float32)
        self.intercept = 0.0
        self.intercept = self._calibrated()

    def _drifted(self, feature: np.ndarray, drift: float) -> list[np.ndarray]:
        """`row_at` of each day; `feature` is -1 where it stays. Without a drift all days share one array."""
        days = [self.row_at]
        for day in range(1, self.days if drift else 1):
            rng = np.random.default_rng([self.seed, 3, day])
            moving = np.flatnonzero((feature >= 0) & (rng.random(len(feature)) < drift))
            dealt = moving[np.lexsort((rng.random(len(moving)), feature[moving]))]
            days.append(days[-1].copy())
            days[-1][moving] = days[-2][dealt]
        return days

    def _invent_traits(self, feature: np.ndarray, place: np.ndarray, rng: np.random.Generator) -> None:
        """A few features matter much, large ones a little less: a bucket's effect is visible after tens of records."""
        weight = (rng.gamma(0.4, 1.0, FEATURES) + 0.02) / np.bincount(feature) ** 0.25
        for side in (slice(0, None, 2), slice(1, None, 2)):
            weight[side] /= weight[side].sum()
        scale = np.sqrt(weight)[feature, None] * [1, SECOND]  # (R, 2)
        self.traits = (rng.standard_normal(scale.shape) * scale * (place > 0)[:, None]).astype(np.float32)

    def _invent_counts(self, rng: np.random.Generator) -> None:
        self.level = rng.uniform(0.3, 4.5, NUMBERS).astype(np.float32)
        self.spread = rng.uniform(0.7, 1.8, NUMBERS).astype(np.float32)
        self.absent = np.where(rng.random(NUMBERS) < 0.6, rng.uniform(0.02, 0.45, NUMBERS), 0).astype(np.float32)
        slope = rng.standard_normal(NUMBERS).astype(np.float32)
        bent = np.arange(NUMBERS) % 2 == 0
        self.straight = np.where(bent, 0, slope * STRAIGHT / np.linalg.norm(slope[~bent])).astype(np.float32)
        self.bent = np.where(bent, slope * BENT / np.linalg.norm(slope[bent]) / np.sqrt(2), 0).astype(np.float32)

    def _calibrated(self) -> float:
        """The intercept that gives the base rate."""
        middle_day = self.days // 2
        logits = self._draw(middle_day, self._rows_on(middle_day), CHUNK, np.random.default_rng([self.seed, 1]))[1]
        low, high = -20.0, 20.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if _sigmoid(logits + middle).mean() < BASE_RATE else (low, middle)
        return (low + high) / 2

    def _rows_on(self, day: int) -> np.ndarray:
        """The row of every place on a day: that of its bucket if it exists, else of the last place before it."""
        places, row_at = np.arange(len(self.born)), self.drifted[min(day, len(self.drifted) - 1)]
        return row_at[np.maximum.accumulate(np.where(self.born <= day, places, 0))]

    def _draw(
        self, day: int, row_at: np.ndarray, count: int, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        place = np.exp(rng.random((count, FEATURES), dtype=np.float32) * self.logs).astype(np.int32)
        np.minimum(place, self.last, out=place)
        place *= rng.random((count, FEATURES), dtype=np.float32) >= self.missing
        rows = row_at[place + self.first]
        user, ad = (sum(self.traits[row] for row in rows[:, side:].T[::2]) for side in (0, 1))  # (n, 2) each
        turn = TURN * day / max(1, self.days - 1)
        user = user @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]], dtype=np.float32)
        shift = np.array([SHIFT, 0], dtype=np.float32)
        paired = PAIRED * ((user + shift) * (ad + shift)).sum(axis=1)
        usual = rng.standard_normal((count, NUMBERS), dtype=np.float32)  # distance of a count's log from its mean
        present = rng.random((count, NUMBERS), dtype=np.float32) >= self.absent
        counts = np.exp(usual * self.spread + self.level) * present
        usual *= present
        logits = paired + usual @ self.straight + (usual**2 - present) @ self.bent
        whole = np.minimum(counts, 2**30).astype(np.int32).astype(np.float32)
        return side_by_side(whole, (rows - self.first).astype(np.uint32)), logits

    def day(self, day: int, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The values of `count` records of a day, as a log has them, and their clicks: in chunks."""
        rng, row_at = np.random.default_rng([self.seed, 2, day]), self._rows_on(day)
        for start in range(0, count, CHUNK):
            values, logits = self._draw(day, row_at, min(CHUNK, count - start), rng)
            chance = _sigmoid(logits + self.intercept)
            yield values, (rng.random(len(chance), dtype=np.float32) < chance).astype(np.uint8)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def named_clicks(columns: ClickColumns, records: int) -> dict[str, np.ndarray]:
    """Records whose clicks depend on one value of each column; the arguments determine everything."""
    rng = np.random.default_rng(records)
    spread = np.arange(1, records + 1)
    people = np.repeat(spread, rng.integers(1, 8, records))[:records]
    users = rng.permutation(people)
    worth = np.zeros(records)
    hashed = np.zeros((records, columns.slots), dtype=np.uint32)
    numbers = np.zeros((records, len(columns.numbers)), dtype=np.float32)
    place = 0
    for one in columns.categories:
        ids = (one.rows ** rng.random((records, one.slots))).astype(np.uint32)  # 1 is the most frequent
        missing = rng.random((records, one.slots)) < 0.1
        hashed[:, place : place + one.slots] = np.where(missing, 0, ids)
        worth += (ids[:, 0] % 2) - 0.5
        place += one.slots
    for number, one_number in enumerate(columns.numbers):
        values = rng.lognormal(1.0, 1.0, records)
        numbers[:, number] = one_number.as_counts(np.where(rng.random(records) < 0.1, np.nan, values))
        worth += np.log(values) - 1.0
    clicked = rng.random(records) < 1 / (1 + np.exp(1.0 - worth))
    found = {"values": side_by_side(numbers, hashed), "clicked": clicked.astype(np.uint8)}
    return found | ({"user": users} if columns.user else {})


def criteo_clicks(vocabularies: Sequence[int], records: int, days: int, drift: float = 0.0) -> dict[str, np.ndarray]:
    """A log as in Criteo's files, as it is read: equal days in time order; the arguments determine it."""
    world = ClickWorld(vocabularies, days, drift=drift)
    ends = [day * records // days for day in range(days + 1)]
    blocks = [block for day in range(days) for block in world.day(day, ends[day + 1] - ends[day])]
    values, clicked = map(np.concatenate, zip(*blocks, strict=True))
    return {"values": values, "clicked": clicked}


def invented_texts(records: int, classes: int, words: int, users: int | None = None, seed: int = 0) -> pl.DataFrame:
    """Records of words `w0`, `w1`, ... of falling frequency. Some rare words indicate a class.

    A word that indicates another class than the record's stays with probability `STRAY`; otherwise a word of the
    record's class replaces it. Each record has a word of its class. With `users`, so many people get them at random.

    >>> made = invented_texts(3, classes=2, words=500)
    >>> len(made), made["text"][0].split()[0][0], set(made["label"]) <= {0, 1}
    (3, 'w', True)
    """
    if records < 1 or words <= 2 * FREQUENT:
        raise UserError(
            f"data.synthetic_records is {records} and data.synthetic_words is {words}: give at least 1 record and "
            f"{2 * FREQUENT + 1} words"
        )
    world = np.random.default_rng([seed, 0])
    speaks_for = np.where(world.random(words) < TELLING, np.arange(words) % classes, NOBODY)
    speaks_for[:FREQUENT] = NOBODY
    chance = 1 / np.arange(1, words + 1)
    rng = np.random.default_rng([seed, 1])
    lengths = rng.integers(SHORT_TEXT, LONG_TEXT + 1, records)
    labels = rng.integers(0, classes, records)
    own = rng.choice(words, lengths.sum(), p=chance / chance.sum())
    label_of = np.repeat(labels, lengths)
    replaced = (speaks_for[own] != NOBODY) & (speaks_for[own] != label_of) & (rng.random(len(own)) >= STRAY)
    replaced[np.cumsum(lengths) - 1] = True  # each record's last word indicates its class
    for label in range(classes):
        telling = np.flatnonzero(speaks_for == label)
        places = np.flatnonzero(replaced & (label_of == label))
        own[places] = rng.choice(telling, len(places), p=chance[telling] / chance[telling].sum())
    texts = [" ".join(f"w{word}" for word in text) for text in np.split(own, np.cumsum(lengths)[:-1])]
    found = pl.DataFrame({"text": texts, "label": labels})
    if users is None:
        return found
    return found.with_columns(user=rng.integers(0, users, records)).with_columns(name=pl.col("user").cast(pl.String))
