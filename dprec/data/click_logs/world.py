"""Invented click logs: features with a long tail, and clicks that a network learns better than a linear model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dprec.data.click_logs.log import FEATURES, NUMBERS, WIDTH, ClickBlock

BASE_RATE = 0.25
NEW = 0.3  # share of the buckets of a large feature that appear after the first day
LARGE = 30  # a feature with at least this many buckets counts as large
TURN = np.pi / 4  # how far tastes turn between the first day and the last
PAIRED, SECOND, SHIFT = 1.9, 0.3, 0.6  # of the paired part: weight, share of the second axis, shift of both sums
BENT, STRAIGHT = 1.1, 0.5  # standard deviations of the two counted parts of the logit
CHUNK = 2**14  # records drawn together: their draws stay in the cache


@dataclass(frozen=True)
class Drawn:
    """Records and what the world knows about them."""

    block: ClickBlock
    chance: np.ndarray  # (n,) float32: probability of the click


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
        values = np.empty((count, WIDTH), dtype=np.int32)
        values[:, :NUMBERS] = np.minimum(counts, 2**30)
        values[:, NUMBERS:] = rows - self.first
        return values, logits

    def day(self, day: int, count: int) -> Iterator[Drawn]:
        """`count` records of a day, in chunks."""
        rng, row_at = np.random.default_rng([self.seed, 2, day]), self._rows_on(day)
        for start in range(0, count, CHUNK):
            values, logits = self._draw(day, row_at, min(CHUNK, count - start), rng)
            chance = _sigmoid(logits + self.intercept)
            clicked = rng.random(len(chance), dtype=np.float32) < chance
            yield Drawn(ClickBlock(values, clicked.astype(np.uint8)), chance)


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-logits))


def synthetic_clicks(
    records: int, vocabularies: Sequence[int], days: int = 7, seed: int = 0, drift: float = 0.0
) -> ClickBlock:
    """A log of `days` equal days in time order; its arguments determine it."""
    world = ClickWorld(vocabularies, days, seed, drift)
    values, clicked = np.empty((records, WIDTH), dtype=np.int32), np.empty(records, dtype=np.uint8)
    end = 0
    for day in range(days):
        for drawn in world.day(day, (day + 1) * records // days - end):
            start, end = end, end + len(drawn.block)
            values[start:end], clicked[start:end] = drawn.block.values, drawn.block.clicked
    return ClickBlock(values, clicked)
